//! The documentation that is made from code says what the code says.

use std::fmt::Write;
use std::path::Path;

/// `docs/rules.md`; `TILEWRIGHT_BLESS=1` writes it.
#[test]
fn the_rules_are_those_of_the_code() {
    let mut text = String::from(
        "# Rules\n\nEvery rule has a name, which messages and JSON use. This page is made from the \
         code.\n\n## Planning\n\nA candidate that breaks one stays in the ranking with the rule's \
         name and the numbers that broke\nit. A request that breaks one is an error.\n\n| rule | \
         what it says |\n|---|---|\n",
    );
    for rule in tilewright_plan::Rule::ALL {
        writeln!(text, "| `{}` | {} |", rule.name(), rule.explanation()).unwrap();
    }
    text.push_str(
        "\n## Programs\n\nThe verifier reports every broken rule with its place.\n\n| rule | what \
         it says |\n|---|---|\n",
    );
    for rule in tilewright_ir::verify::Rule::ALL {
        writeln!(text, "| `{}` | {} |", rule.name(), rule.text()).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rules.md");
    if std::env::var_os("TILEWRIGHT_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == text, "docs/rules.md is out of date: run with TILEWRIGHT_BLESS=1");
}
