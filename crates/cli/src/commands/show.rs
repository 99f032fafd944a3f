//! `show`: prints one stage on the road from program to machine code.

use super::plan::{every_candidate, make};
use super::print;
use crate::args::{Emit, ShowArgs};
use crate::error::CliError;
use crate::machine;
use crate::request::Request;
use tilewright_cuda::PtxTarget;
use tilewright_engine::Engine;
use tilewright_ir::{analysis, text};
use tilewright_kernel::text::print as print_kernel;
use tilewright_metal::Options;
use tilewright_plan::mapping::MatrixBasis;
use tilewright_plan::{PlanError, Target};

/// What the names of NVIDIA's GPUs begin with.
const NVIDIA: &str = "nvidia-";

/// Runs the command.
///
/// # Errors
/// Usage errors, and whatever the stages before the printed one refuse.
pub fn run(args: &ShowArgs) -> Result<(), CliError> {
    let request = Request::new(&args.op)?;
    match args.emit {
        Emit::Program => return print(&text::print(&request.program)),
        Emit::Facts => {
            let facts = analysis::facts(&request.program);
            return print(&analysis::print(&request.program, &facts));
        }
        _ => {}
    }
    if args.emit == Emit::Asm && args.target != "cpu" {
        return Err(CliError::Usage(format!(
            "machine code is shown for the CPU of this machine, not for target `{}`; --emit \
             kernel shows its kernel",
            args.target
        )));
    }
    if args.emit == Emit::Ptx && !args.target.starts_with(NVIDIA) {
        return Err(CliError::Usage(format!(
            "PTX is for NVIDIA GPUs, not for target `{}`: add --target nvidia-h200",
            args.target
        )));
    }
    let plan = make(&request, &args.schedule, &args.target, args.isa.as_deref())?.plan;
    if args.emit == Emit::Msl && !is_metal(&plan.target) {
        return Err(CliError::Usage(format!(
            "MSL is emitted for Apple GPUs, not for target `{}`: use --target apple-m1-max",
            args.target
        )));
    }
    let winner = || {
        plan.ranking.winner().map_err(CliError::usage)?;
        Ok::<usize, CliError>(plan.ranking.chosen().unwrap_or(0))
    };
    if let Some(reason) = &plan.general
        && matches!(args.emit, Emit::Candidates | Emit::Plan)
    {
        return Err(CliError::usage(PlanError::Family(reason.clone())));
    }
    match args.emit {
        Emit::Candidates => print(&every_candidate(&plan)),
        Emit::Plan => {
            let chosen = winner()?;
            let candidate = &plan.ranking.candidates[chosen];
            print(&format!("{}\n\n{:#?}\n", plan.describe(chosen), candidate))
        }
        Emit::Asm => {
            let device = machine::cpu(args.isa.as_deref(), args.schedule.cpu_threads)?;
            let compiled = Engine::new(device).compile(&plan)?;
            print(&compiled.handle().executable().disassembly())
        }
        Emit::Kernel | Emit::Msl | Emit::Ptx | Emit::Program | Emit::Facts => {
            let lowered = match plan.general {
                Some(_) => plan.lower_general(),
                None => plan.lower(winner()?),
            };
            let lowered = lowered.map_err(CliError::usage)?;
            let mut texts = Vec::new();
            for kernel in &lowered.launches {
                texts.push(match args.emit {
                    Emit::Msl => {
                        let msl = tilewright_metal::emit(kernel, &Options::default());
                        msl.map_err(CliError::usage)?.text
                    }
                    Emit::Ptx => {
                        let ptx = tilewright_cuda::emit(kernel, PtxTarget::BASE);
                        ptx.map_err(CliError::usage)?.text
                    }
                    _ => print_kernel(kernel),
                });
            }
            print(&texts.join("\n"))
        }
    }
}

/// Whether a target is a GPU with simdgroups, for which MSL is.
fn is_metal(target: &Target) -> bool {
    target.gpu_facts().is_some_and(|gpu| gpu.matrix.contains(&MatrixBasis::Simdgroup))
}
