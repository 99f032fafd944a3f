//! Who measured.

use crate::canonical::{hash, text};
use crate::record::Record;
use crate::verdict::{Checks, Rule};

/// Checks the identity of the machine wherever it is stated.
pub fn check(record: &Record, checks: &mut Checks) {
    let Some(machine) = &record.machine else { return };
    let own = hash(text(&machine.identity).as_bytes());
    let stated = record.ledger.first().and_then(|e| e.text("identity_sha256"));
    checks.that(Rule::MachineIdentity, stated == Some(own.as_str()), || {
        format!("machine.json: the identity's hash is {own}, entry 0 says {stated:?}")
    });
    let meter = machine.meter.as_deref();
    checks.that(Rule::MachineIdentity, matches!(meter, None | Some("clock" | "simulated")), || {
        format!("machine.json: the meter {meter:?}")
    });
    if meter == Some("simulated") {
        let note = "machine.json: the times are simulated and say nothing of any machine";
        checks.note(Rule::MachineIdentity, note);
    }
    for frozen in &record.frozen {
        let same = frozen.identity_sha256 == own || record.changed("identity", None);
        checks.that(Rule::MachineIdentity, same, || {
            format!("frozen/{}: the identity differs and no change says so", frozen.case.id())
        });
    }
    for entry in record.entries("change") {
        let what = entry.text("what").unwrap_or("?");
        checks.note(Rule::MachineIdentity, format!("entry {}: a changed {what}", entry.index));
    }
}
