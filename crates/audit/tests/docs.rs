//! `docs/audit.md` lists the rules of the code.

use std::fmt::Write;
use std::path::Path;
use tilewright_audit::{Kind, Rule};

const HEAD: &str = "\
# The audit

```
tilewright audit DIR [--json]     the record of a study
tilewright audit FILE [--json]    a Kernel Tuner cache or T4 file, gzip or not
```

The audit needs no device. It derives every label, regret, ratio, score, choice and hash of a record
again from the raw samples, as [formats/record.md](formats/record.md) defines them, and shares
nothing else with the programs that wrote the record: its crate depends on no other of this
workspace, and a test proves it. It reads the study file again, and it fits every model anew, by
another method.

There is one verdict per rule: it holds, it fails, or there was nothing to check. A failing rule
names the first places where it fails. The exit code is 0 if no rule fails, 1 if one does, and 2 if
there is nothing to audit. `--json` prints what `schemas/audit.schema.json` describes.

A record whose hashes were all written anew after a change still fails: the rules are on what the
samples say, not on hashes alone. What no audit can see is a record that was made up from the start,
samples included. See \"Ledger\" in [formats/record.md](formats/record.md).

Files are read within limits that hold before anything is allocated for their content: 64 MiB a
file, 256 MiB unpacked, 32 nested levels, 16 million values, 10,000 files. Links aren't followed, and
no file outside the record is opened.
";

#[test]
fn the_rules_are_those_of_the_code() {
    let mut text = HEAD.to_string();
    for (title, kind) in [("Records", Kind::Study), ("Files of Kernel Tuner", Kind::KernelTunerT4)]
    {
        write!(text, "\n## {title}\n\n| rule | what must hold |\n|---|---|\n").unwrap();
        for rule in Rule::ALL.iter().filter(|r| r.applies(kind)) {
            writeln!(text, "| `{}` | {} |", rule.name(), rule.text()).unwrap();
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/audit.md");
    if std::env::var_os("TILEWRIGHT_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == text, "docs/audit.md is out of date: run with TILEWRIGHT_BLESS=1");
}
