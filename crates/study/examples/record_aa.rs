//! Records A/A rounds for the simulation of verdicts: one plan of each case, compiled anew and
//! measured as three paths in every round, as a replay does.
//!
//! `cargo run --release -p tilewright-study --example record_aa -- OUT.json [ROUNDS]`
//! on a machine that does nothing else.

use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;
use tilewright_cpu::{CpuDevice, CpuOptions};
use tilewright_runtime::Device;
use tilewright_study::adhoc::with_bench;
use tilewright_study::bench::{Bench, Setup, Silent};
use tilewright_study::case::Case;
use tilewright_study::meter::Clock;
use tilewright_study::order;
use tilewright_study::protocol::Samples;
use tilewright_study::simulate::{Recorded, RecordedCase};
use tilewright_study::spec::{Metric, Study};
use tilewright_study::subject::Subject;
use tilewright_study::worker::{Launch, serve};

const STUDY: &str = r#"
name = "aa"
threads = 2
[[family]]
ops = ["softmax", "rmsnorm"]
training = ["37x1537", "256x300"]
[[family]]
ops = ["gemm"]
training = ["128x128x128", "257x129x513"]
[replay]
samples = 5
single_samples = 0
sample_ms = 4.0
warmup_ms = 8.0
"#;

const PATHS: usize = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let options = CpuOptions { threads: Some(2), ..CpuOptions::default() };
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(options)?);
    if args.first().is_some_and(|a| a == "worker") {
        let input = BufReader::new(std::io::stdin());
        return Ok(serve::serve(&device, &Clock, input, std::io::stdout())?);
    }
    let out = args.first().ok_or("OUT.json is missing")?;
    let rounds: usize = args.get(1).map_or(Ok(60), |n| n.parse())?;
    let study = Study::parse(STUDY, false)?;
    let setup = Setup {
        device: device.clone(),
        meter: &Clock,
        worker: Launch {
            program: std::env::current_exe()?,
            args: vec!["worker".to_string()],
            ..Launch::default()
        },
        progress: &Silent,
        record_changes: false,
    };
    let mut cases: Vec<RecordedCase> = study
        .cases
        .iter()
        .map(|c| RecordedCase { case: c.id.clone(), rounds: Vec::new() })
        .collect();
    with_bench(&setup, &study, |bench, _| {
        for round in 0..rounds {
            for (case, recorded) in study.cases.iter().zip(&mut cases) {
                recorded.rounds.extend(one_round(bench, case, round)?);
            }
        }
        Ok(())
    })?;
    let recorded = Recorded {
        machine: device.capabilities().model.clone(),
        how: "one plan as three paths a round, each compiled anew; 2 threads; 5 interleaved \
              batches of 4 ms; microseconds a call"
            .to_string(),
        cases,
    };
    std::fs::write(Path::new(out), format!("{}\n", serde_json::to_string(&recorded)?))?;
    Ok(())
}

fn one_round(
    bench: &mut Bench<'_>,
    case: &Case,
    round: usize,
) -> Result<Option<Vec<f64>>, tilewright_study::StudyError> {
    let protocol = bench.study.replay;
    let subject = Subject::new(case, &bench.setup.device.target().clone(), &bench.study.space)?;
    let plan = subject.plan.ranking.order[0];
    bench.open(case, 1, 1)?;
    for slot in 0..PATHS {
        bench.compile(&[[slot, plan]], 1, false)?;
    }
    let order = order::replay(PATHS, case.ordinal, round);
    let mut all = vec![Samples::default(); PATHS];
    for slot in &order {
        match bench.start(*slot, &protocol)? {
            Ok(samples) => all[*slot] = samples,
            Err(_) => return Ok(None),
        }
    }
    for _ in 0..protocol.samples {
        for slot in &order {
            match bench.batch(*slot, all[*slot].repetitions)? {
                Ok(ns) => all[*slot].batch_ns.push(ns),
                Err(_) => return Ok(None),
            }
        }
    }
    // Four significant digits of a time are more than its noise leaves.
    let values: Option<Vec<f64>> = all.iter().map(|s| s.value(Metric::Batch)).collect();
    Ok(values.map(|v| v.iter().map(|us| (us * 1e4).round() / 1e4).collect()))
}
