//! `ablate`: measures every combination of a few factors of a mapping.

use super::search::CaseArgs;
use super::study::with_setup;
use super::{print, print_json};
use crate::error::CliError;
use clap::Args;
use tilewright_study::ablate::{Ablation, Factor, ablate};

/// `ablate`.
#[derive(Args, Debug)]
pub struct AblateArgs {
    /// Name of an op.
    pub op: String,
    /// ROWSxCOLUMNS or MxNxK.
    pub shape: String,
    /// A field of the mapping and the values to compare, the first the base: unroll=1,4 or
    /// cache=off,on or tile=8x3,6x4.
    #[arg(long = "factor", value_name = "NAME=VALUES", required = true)]
    pub factors: Vec<String>,
    /// The case's options.
    #[command(flatten)]
    pub case: CaseArgs,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
///
/// # Errors
/// By exit code.
pub fn run(args: &AblateArgs) -> Result<(), CliError> {
    let factors = args
        .factors
        .iter()
        .map(|text| Factor::parse(text).map_err(CliError::Usage))
        .collect::<Result<Vec<_>, _>>()?;
    // Twice as many rounds as paths, the A/A path among them, balance the order.
    let cells: usize = factors.iter().map(|f| f.levels.len()).product();
    let cycle = 2 * (cells + 1);
    let rounds = cycle * 14usize.div_ceil(cycle);
    let more = format!("metric = {:?}", args.case.metric());
    let study = args.case.study(&args.op, Some(&args.shape), "", &more, rounds)?;
    let result = with_setup(&study, false, |setup| ablate(setup, &study, &factors))?;
    if args.json { print_json(&result) } else { print(&text(&result)) }
}

fn text(result: &Ablation) -> String {
    let names: Vec<&str> = result.factors.iter().map(|f| f.name.as_str()).collect();
    let at = |levels: &[serde_json::Value]| {
        let parts = names.iter().zip(levels).map(|(n, l)| format!("{n} {l}"));
        parts.collect::<Vec<_>>().join(", ")
    };
    let balanced = if result.balanced { "balanced" } else { "not balanced" };
    let floor = result.floor.map_or("unknown".to_string(), |f| format!("{:.2} %", 100.0 * f));
    let mut out = format!(
        "{}, {} rounds, {balanced}, noise floor {floor}\n\n",
        result.case.id, result.rounds
    );
    for cell in &result.cells {
        let time = cell.median_us.map_or_else(
            || cell.error.as_ref().map_or("-".to_string(), |e| e.message.clone()),
            |us| format!("{us:>10.3} us"),
        );
        let also = if cell.also.is_empty() {
            String::new()
        } else {
            format!("  (other {})", cell.also.join(", "))
        };
        out.push_str(&format!("{time}  {}{also}\n", at(&cell.levels)));
    }
    out.push('\n');
    for effect in &result.effects {
        let verdict = if effect.beyond_floor { "" } else { ", a tie" };
        out.push_str(&format!(
            "{} {} -> {}: x{:.3} [{:.3}, {:.3}], {} of {} rounds{verdict}  ({})\n",
            effect.factor,
            effect.from,
            effect.to,
            effect.median,
            effect.min,
            effect.max,
            effect.won,
            result.rounds,
            at(&effect.at)
        ));
    }
    out
}
