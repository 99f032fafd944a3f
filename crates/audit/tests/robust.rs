//! Files of any content are judged, never a panic: records whose values were replaced, removed or
//! doubled at random places, with every hash written anew.

mod common;

use common::Record;
use serde_json::{Value, json};
use tilewright_audit::{Limits, audit};

/// Numbers that follow from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// Changes one place somewhere in a value.
fn disturb(value: &mut Value, random: &mut Random) {
    match value {
        Value::Object(members) if !members.is_empty() && random.below(8) > 0 => {
            let key = members.keys().nth(random.below(members.len())).unwrap().clone();
            match random.below(12) {
                0 => {
                    members.remove(&key);
                }
                _ => disturb(&mut members[&key], random),
            }
        }
        Value::Array(items) if !items.is_empty() && random.below(8) > 0 => {
            let index = random.below(items.len());
            match random.below(12) {
                0 => {
                    items.remove(index);
                }
                1 => items.insert(index, items[index].clone()),
                _ => disturb(&mut items[index], random),
            }
        }
        other => {
            let values = [
                json!(null),
                json!(0),
                json!(-1),
                json!(1),
                json!(u64::MAX),
                json!(1e300),
                json!(-1e-300),
                json!(7),
                json!(""),
                json!("x"),
                json!([]),
                json!({}),
                json!(true),
                json!([[], 3]),
            ];
            *other = values[random.below(values.len())].clone();
        }
    }
}

#[test]
fn any_content_is_judged() {
    let valid = Record::valid();
    let mut paths: Vec<String> =
        valid.files.keys().filter(|p| p.ends_with(".json")).cloned().collect();
    paths.sort();
    let (mut after, mut found) = (0, 0);
    let rounds = 200;
    for seed in 0..rounds {
        let mut random = Random(seed);
        let mut record = Record { files: valid.files.clone(), entries: valid.entries.clone() };
        let path = &paths[random.below(paths.len())];
        let mut value = valid.json(path);
        for _ in 0..=random.below(3) {
            disturb(&mut value, &mut random);
        }
        record.files.insert(path.clone(), (common::canonical(&value) + "\n").into_bytes());
        record.reseal();
        let dir = record.write("robust");
        let audit = audit(dir.path(), &Limits::default()).unwrap();
        // A file from before the freeze changes the freeze's hash, which is found at once.
        if ["labels/", "replay/", "results"].iter().any(|p| path.starts_with(p)) {
            after += 1;
            found += u32::from(!audit.passed());
        }
    }
    // The rest are remarks that nothing derives from: states, drift, cold calls, compile times.
    assert!(after > 50 && 10 * found > 7 * after, "{found} of {after} changes were found");
}

#[test]
fn any_ledger_is_judged() {
    let valid = Record::valid();
    for seed in 0..100 {
        let mut random = Random(1000 + seed);
        let mut record = Record { files: valid.files.clone(), entries: valid.entries.clone() };
        let index = random.below(record.entries.len());
        match random.below(4) {
            0 => {
                record.entries.remove(index);
            }
            1 => record.entries.insert(index, valid.entries[random.below(20)].clone()),
            _ => disturb(&mut record.entries[index].1, &mut random),
        }
        let dir = record.write("robust-ledger");
        audit(dir.path(), &Limits::default()).unwrap();
    }
}
