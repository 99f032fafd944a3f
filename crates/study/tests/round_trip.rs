//! What we write reads back the same, and is what the committed samples hold. The samples are made
//! by these tests with `TILEWRIGHT_BLESS=1`.

use std::path::PathBuf;

use tilewright_plan::calibrate::Sample;
use tilewright_plan::policy::whole_launch::{Family, MAX_INPUTS};
use tilewright_study::export;
use tilewright_study::import::space::Overheads;
use tilewright_study::import::{
    self, Failure, ImportError, Imported, Limits, ParamValue, Space, TimeUnit, Training,
    TrainingRow, Trial, t4, training_csv,
};

fn golden(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    if std::env::var_os("TILEWRIGHT_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(committed, text, "{name} differs; TILEWRIGHT_BLESS=1 rewrites it");
}

fn space() -> Space {
    let trial = |bx: i64, mode: &str, time| Trial {
        configuration: vec![
            ParamValue::Int(bx),
            ParamValue::Text(mode.to_string()),
            ParamValue::Float(0.1 + 0.2),
            ParamValue::Bool(bx > 32),
        ],
        time,
        samples: if time.is_ok() { vec![0.1, 1.0 / 3.0, 2e-7] } else { Vec::new() },
        timestamp: (bx == 32).then(|| "2026-09-05T12:00:00Z".to_string()),
        overheads: Overheads { compilation: Some(12.5), ..Overheads::default() },
    };
    Space {
        device: Some("A <device> & \"more\"".to_string()),
        kernel: Some("k,1".to_string()),
        problem: Some("4096x4096".to_string()),
        // Not in the order of the alphabet.
        parameters: ["bx", "a mode, quoted", "scale", "big"].map(str::to_string).to_vec(),
        objective: "time".to_string(),
        unit: TimeUnit::Microseconds,
        trials: vec![
            trial(32, "row", Ok(1.0 / 3.0)),
            trial(64, "column\n\"x\"", Ok(0.25)),
            trial(128, "row", Err(Failure::Compile)),
            trial(256, "row", Err(Failure::Timeout)),
            trial(512, "row", Err(Failure::Runtime)),
            trial(1024, "row", Err(Failure::Correctness)),
            trial(2048, "row", Err(Failure::Constraints)),
        ],
    }
}

fn training() -> Training {
    let row = |i: usize| {
        let mut inputs = [0.0; MAX_INPUTS];
        for (j, slot) in inputs.iter_mut().take(7).enumerate() {
            *slot = (i * 7 + j) as f64 / 3.0;
        }
        TrainingRow {
            sample: Sample {
                case: format!("softmax_{}x769", i / 2),
                shape: format!("{}x769", i / 2),
                operator: "softmax".to_string(),
                candidate: format!("{} threads, \"cache\"", 32 << i),
                label: 1.0 / (i + 3) as f64,
                samples: vec![1.0 / (i + 3) as f64, 0.1 + 0.2],
            },
            inputs,
            incumbent: i.is_multiple_of(2),
        }
    };
    Training {
        family: Family::GpuRows,
        target: "apple-m1-max".to_string(),
        rows: (0..4).map(row).collect(),
    }
}

#[test]
fn t4_reads_back_the_same() {
    let own = space();
    let value = export::t4(&own);
    assert_eq!(t4::validate(&value), []);
    let text = serde_json::to_string_pretty(&value).unwrap() + "\n";
    golden("space.t4.json", &text);
    match import::detect(text.as_bytes(), &Limits::default()).unwrap() {
        Imported::Spaces(back) => assert_eq!(back, [own]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_csv_of_a_space_has_a_line_a_trial() {
    let text = export::space_csv(&space()).unwrap();
    golden("space.csv", &text);
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let rows: Vec<csv::StringRecord> = reader.records().collect::<Result<_, _>>().unwrap();
    assert_eq!(rows.len(), 7);
    assert_eq!(&rows[1][1], "column\n\"x\"");
    assert_eq!(rows[0][5].parse::<f64>().unwrap(), 1.0 / 3.0);
    assert_eq!((&rows[2][4], &rows[2][5]), ("compile", ""));
}

#[test]
fn training_rows_read_back_the_same() {
    let own = training();
    let text = export::training(&own).unwrap();
    golden("training.csv", &text);
    match import::detect(text.as_bytes(), &Limits::default()).unwrap() {
        Imported::Training(back) => assert_eq!(*back, own),
        other => panic!("{other:?}"),
    }
    let named = Training { target: "a,b".to_string(), ..own };
    assert!(export::training(&named).is_err());
}

#[test]
fn faults_of_a_training_file_name_their_line() {
    let text = export::training(&training()).unwrap();
    let broken = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        let changed = text.replacen(from, to, 1);
        training_csv::parse(&changed, &Limits::default()).unwrap_err().to_string()
    };
    assert!(broken("gpu-rows", "gpu-cows").starts_with("line 1"));
    assert!(broken("scalar_rounds", "rounds").starts_with("line 2"));
    assert!(broken("0.3333333333333333", "NaN").contains("line 3"));
    assert!(broken("0.3333333333333333", "fast").contains("line 3"));
    assert!(broken(",1,", ",yes,").contains("incumbent"));
    assert!(broken("\"\"\",0,", "\"\"\",1,").contains("incumbent already"));
    let few = Limits { trials: 3, ..Limits::default() };
    assert!(matches!(training_csv::parse(&text, &few), Err(ImportError::TooMany { .. })));
    let cut: String = text.chars().take(text.len() - 9).collect();
    assert!(training_csv::parse(&cut, &Limits::default()).is_err());
}

#[test]
fn other_files_are_refused() {
    let limits = Limits::default();
    for bad in ["", "{}", "[]", "7", "hello", "{\"trials\": [], \"meta\": {", "\u{0}"] {
        assert!(import::detect(bad.as_bytes(), &limits).is_err(), "{bad}");
    }
    assert!(matches!(import::detect(&[0xff, 0xfe], &limits), Err(ImportError::NotText)));
    let missing = import::read(std::path::Path::new("no/such/file"), &limits);
    assert!(matches!(missing, Err(ImportError::Io { .. })));
    let folder = import::read(std::path::Path::new(env!("CARGO_MANIFEST_DIR")), &limits);
    assert!(folder.is_err());
}
