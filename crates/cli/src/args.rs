//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Plans, compiles, checks and runs tile programs.
#[derive(Parser, Debug)]
#[command(name = "tilewright", version, about, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 ok, 1 a check failed, 2 usage or input, 3 device missing, 4 file input/output.

Examples:
  tilewright run softmax 1024x4096
  tilewright run gemm 512x512x512 --cpu-threads 1
  tilewright plan softmax 37x1537 --target apple-m1-max --all
  tilewright show rmsnorm 64x769 --emit kernel";

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// List the devices of this machine and what they can do.
    Devices(DevicesArgs),
    /// Plan, compile, run, check every element against the float64 oracle, and time.
    Run(Box<RunArgs>),
    /// Rank the candidates for a target. Needs no device.
    Plan(Box<PlanArgs>),
    /// Print one stage on the road from program to machine code.
    Show(Box<ShowArgs>),
    /// Fit a cost model to measurements, and say what it is worth on shapes it hasn't seen.
    Calibrate(Box<crate::commands::calibrate::CalibrateArgs>),
    /// Derive a study's record again from its raw samples: one verdict per rule. Needs no device.
    Audit(crate::commands::audit::AuditArgs),
    /// Write Markdown and one self-contained HTML page from a study's record.
    Report(crate::commands::report::ReportArgs),
    /// Run a study: search, calibrate, freeze, label, replay, sum up.
    Study(crate::commands::study::StudyArgs),
    /// Measure every candidate of a case (or of a study's training cases).
    Search(crate::commands::search::SearchArgs),
    /// Fix plans and protocol of a record's hold-out.
    Freeze(crate::commands::freeze::FreezeArgs),
    /// Label a frozen record's hold-out and measure its rounds.
    Replay(crate::commands::replay::ReplayArgs),
    /// Measure every combination of a few factors of a mapping.
    Ablate(crate::commands::ablate::AblateArgs),
    /// Run a published list of cases against the oracle and write a report to send back.
    SelfTest(crate::commands::self_test::SelfTestArgs),
    /// The process in which a study's candidates and controls run.
    #[command(hide = true)]
    StudyWorker(crate::commands::worker::WorkerArgs),
}

/// The ops, for the help of the commands that take one.
fn ops_help() -> String {
    let mut text = String::from("Ops:\n");
    for op in tilewright_ir::ops::catalog() {
        text.push_str(&format!("  {:<19}{:<13}{}\n", op.name, op.form.text(), op.doc));
    }
    text
}

/// `devices`.
#[derive(Args, Debug)]
pub struct DevicesArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// What to compute.
#[derive(Args, Debug)]
pub struct OpArgs {
    /// Name of an op (see below), or path of a .tile file.
    pub op: String,
    /// ROWSxCOLUMNS, MxNxK or BxMxNxK; for a .tile file its dimensions by name: rows=37,cols=1537.
    pub shape: Option<String>,
    /// Element type: f32 (the default), f64, f16 or bf16.
    #[arg(long, value_name = "D")]
    pub dtype: Option<String>,
    /// Storage of a product's operands: nn, nt, tn or tt (t: transposed).
    #[arg(long, value_name = "TT")]
    pub trans: Option<String>,
    /// What follows a product, in order: scale, bias, residual, relu, gelu, silu.
    #[arg(long, value_name = "STEPS", value_delimiter = ',')]
    pub epilogue: Vec<String>,
    /// Factor of a product.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub alpha: Option<f64>,
    /// Factor of a product's old C. With 0, C isn't read.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub beta: Option<f64>,
}

/// How to choose a schedule.
#[derive(Args, Debug)]
pub struct ScheduleArgs {
    /// Cost policy (default: the target's).
    #[arg(long, value_name = "P")]
    pub policy: Option<String>,
    /// Coefficients of the policy: a string that starts with `service-v1,`, the word `analytic`,
    /// or else the path of a JSON profile.
    #[arg(long, value_name = "FILE|STRING")]
    pub profile: Option<String>,
    /// Blocks of a product: `BM,BN,BK` joined by `;`.
    #[arg(long, value_name = "BLOCKS")]
    pub blocks: Option<String>,
    /// Widths of a group in threads.
    #[arg(long, value_name = "T", value_delimiter = ',')]
    pub threads: Option<Vec<u32>>,
    /// Consecutive elements per worker and access.
    #[arg(long, value_name = "V", value_delimiter = ',')]
    pub vector: Option<Vec<u32>>,
    /// Chunks per trip of a column loop.
    #[arg(long, value_name = "U", value_delimiter = ',')]
    pub unroll: Option<Vec<u32>>,
    /// Programs per group.
    #[arg(long, value_name = "P", value_delimiter = ',')]
    pub pack: Option<Vec<u32>>,
    /// Copy inputs that several phases read: on or off (default: both are candidates).
    #[arg(long, value_name = "on|off")]
    pub cache: Option<Switch>,
    /// Threads of a CPU launch.
    #[arg(long, value_name = "N")]
    pub cpu_threads: Option<u32>,
    /// Resource table to plan with: what compilers report of kernels (default: the one that is
    /// shipped for the target).
    #[arg(long, value_name = "FILE")]
    pub resources: Option<PathBuf>,
}

/// On or off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

/// `run`.
#[derive(Args, Debug)]
#[command(after_help = ops_help())]
pub struct RunArgs {
    /// What to compute.
    #[command(flatten)]
    pub op: OpArgs,
    /// Where to run: cpu, cuda, cuda:N or metal.
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    pub device: String,
    /// Instruction set of the CPU: avx512, avx2 or portable (default: the best one).
    #[arg(long, value_name = "ISA")]
    pub isa: Option<String>,
    /// Inputs as .npy files, one per tensor that is read, in order, or as NAME=FILE. Without any,
    /// seeded random data is used.
    #[arg(long, value_name = "X.NPY", num_args = 1..)]
    pub input: Vec<String>,
    /// Where to write the outputs as .npy files, one per tensor that is written, in order.
    #[arg(long, value_name = "Y.NPY", num_args = 1..)]
    pub output: Vec<PathBuf>,
    /// Where to write the resource table with what the compiler reported of this run's kernels.
    #[arg(long, value_name = "FILE")]
    pub save_resources: Option<PathBuf>,
    /// Seed of the random data.
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    pub seed: u64,
    /// How to choose a schedule.
    #[command(flatten)]
    pub schedule: ScheduleArgs,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `plan`.
#[derive(Args, Debug)]
#[command(after_help = ops_help())]
pub struct PlanArgs {
    /// What to compute.
    #[command(flatten)]
    pub op: OpArgs,
    /// Machine to plan for: cpu (this one), apple-m1-max or nvidia-h200.
    #[arg(long, default_value = "cpu", value_name = "T")]
    pub target: String,
    /// How to choose a schedule.
    #[command(flatten)]
    pub schedule: ScheduleArgs,
    /// Print every candidate, illegal ones with the rule that rejected them.
    #[arg(long)]
    pub all: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `show`.
#[derive(Args, Debug)]
#[command(after_help = ops_help())]
pub struct ShowArgs {
    /// What to compute.
    #[command(flatten)]
    pub op: OpArgs,
    /// Stage to print.
    #[arg(long, value_name = "STAGE")]
    pub emit: Emit,
    /// Machine to plan for: cpu (this one), apple-m1-max or nvidia-h200.
    #[arg(long, default_value = "cpu", value_name = "T")]
    pub target: String,
    /// Instruction set of the CPU: avx512, avx2 or portable (default: the best one).
    #[arg(long, value_name = "ISA")]
    pub isa: Option<String>,
    /// How to choose a schedule.
    #[command(flatten)]
    pub schedule: ScheduleArgs,
}

/// Stages that `show` prints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Emit {
    /// The tile program.
    Program,
    /// What is proved of it.
    Facts,
    /// Every candidate with its score or the rule that rejected it.
    Candidates,
    /// The chosen plan.
    Plan,
    /// The mapped kernel.
    Kernel,
    /// Machine code of the CPU.
    Asm,
    /// Metal Shading Language.
    Msl,
    /// PTX for an NVIDIA GPU.
    Ptx,
}
