//! The assembler of the tests.

use std::process::Command;

/// Registers and spill bytes per thread, or `None` where there is no assembler.
pub fn assemble(ptx: &str, sm: &str) -> Option<(u32, u32)> {
    let tool = std::env::var("TILEWRIGHT_PTXAS").unwrap_or_else(|_| "ptxas".to_string());
    let folder = std::env::temp_dir();
    let name = format!("tilewright-{}-{:?}", std::process::id(), std::thread::current().id())
        .replace(['(', ')'], "");
    let (source, object) = (folder.join(format!("{name}.ptx")), folder.join(format!("{name}.o")));
    std::fs::write(&source, ptx).unwrap();
    let output =
        Command::new(&tool).args(["-v", "-arch", sm, "-o"]).arg(&object).arg(&source).output();
    let _ = std::fs::remove_file(&source);
    let _ = std::fs::remove_file(&object);
    let output = match output {
        Ok(output) => output,
        Err(_) if std::env::var_os("TILEWRIGHT_REQUIRE_PTXAS").is_none() => {
            eprintln!("skipped: no ptxas found");
            return None;
        }
        Err(error) => panic!("ptxas is required but `{tool}` doesn't start: {error}"),
    };
    let log = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{sm}: {log}\n{ptx}");
    let number = |after: &str| -> u32 {
        let text = log.split(after).nth(1).unwrap_or("").trim_start();
        text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
    };
    let spills = log
        .split(" bytes spill stores")
        .next()
        .and_then(|s| s.rsplit([' ', ',']).next())
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    Some((number("Used "), spills))
}
