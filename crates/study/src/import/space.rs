//! A tuning space: measured configurations of one kernel at one problem size on one device.

use std::fmt;

use serde::Serialize;

/// A value of a tuning parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum ParamValue {
    /// An integer.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
    /// Text.
    Text(String),
    /// A truth value.
    Bool(bool),
}

impl fmt::Display for ParamValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParamValue::Int(v) => write!(f, "{v}"),
            ParamValue::Float(v) => write!(f, "{v}"),
            ParamValue::Text(v) => f.write_str(v),
            ParamValue::Bool(v) => write!(f, "{v}"),
        }
    }
}

/// Unit of a space's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
    /// Nanoseconds.
    Nanoseconds,
}

impl TimeUnit {
    /// Microseconds of one unit.
    pub fn microseconds(self) -> f64 {
        match self {
            TimeUnit::Seconds => 1e6,
            TimeUnit::Milliseconds => 1e3,
            TimeUnit::Microseconds => 1.0,
            TimeUnit::Nanoseconds => 1e-3,
        }
    }

    /// The name that we write.
    pub fn name(self) -> &'static str {
        match self {
            TimeUnit::Seconds => "seconds",
            TimeUnit::Milliseconds => "milliseconds",
            TimeUnit::Microseconds => "microseconds",
            TimeUnit::Nanoseconds => "nanoseconds",
        }
    }

    /// A unit by name; `miliseconds` occurs in published files.
    pub fn by_name(name: &str) -> Option<TimeUnit> {
        Some(match name {
            "s" | "second" | "seconds" => TimeUnit::Seconds,
            "ms" | "millisecond" | "milliseconds" | "miliseconds" => TimeUnit::Milliseconds,
            "us" | "microsecond" | "microseconds" => TimeUnit::Microseconds,
            "ns" | "nanosecond" | "nanoseconds" => TimeUnit::Nanoseconds,
            _ => return None,
        })
    }
}

/// Why a configuration has no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It ran past its deadline.
    Timeout,
    /// It didn't compile.
    Compile,
    /// It failed while running.
    Runtime,
    /// Its output was wrong.
    Correctness,
    /// It breaks a rule of the space.
    Constraints,
}

impl Failure {
    /// The word of T4's `invalidity`.
    pub fn name(self) -> &'static str {
        match self {
            Failure::Timeout => "timeout",
            Failure::Compile => "compile",
            Failure::Runtime => "runtime",
            Failure::Correctness => "correctness",
            Failure::Constraints => "constraints",
        }
    }

    /// The failure of that name.
    pub fn by_name(name: &str) -> Option<Failure> {
        use Failure::*;
        [Timeout, Compile, Runtime, Correctness, Constraints].into_iter().find(|f| f.name() == name)
    }
}

/// Times around the measurement, in the space's unit; what isn't stated is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overheads {
    /// Compilation.
    pub compilation: Option<f64>,
    /// The tuning framework.
    pub framework: Option<f64>,
    /// The search algorithm.
    pub search_algorithm: Option<f64>,
    /// Validation of the output.
    pub validation: Option<f64>,
}

/// One configuration that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// A value for each of the space's parameters, in their order.
    pub configuration: Vec<ParamValue>,
    /// The time in the space's unit, or why there is none.
    pub time: Result<f64, Failure>,
    /// Single measurements in the space's unit.
    pub samples: Vec<f64>,
    /// When it was measured, as the file says it.
    pub timestamp: Option<String>,
    /// Times around the measurement.
    pub overheads: Overheads,
}

/// Measured configurations of one kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Space {
    /// The device, if stated.
    pub device: Option<String>,
    /// The kernel, if stated.
    pub kernel: Option<String>,
    /// The problem size, if stated.
    pub problem: Option<String>,
    /// Parameter names.
    pub parameters: Vec<String>,
    /// What `time` is called in the file.
    pub objective: String,
    /// Unit of all times.
    pub unit: TimeUnit,
    /// Trials, in the order of the file if it is a list, else by their key.
    pub trials: Vec<Trial>,
}

impl Space {
    /// Trials that have a time.
    pub fn measured(&self) -> impl Iterator<Item = (&Trial, f64)> {
        self.trials.iter().filter_map(|t| t.time.ok().map(|time| (t, time)))
    }

    /// The fastest trial with its time; the first of equals.
    pub fn best(&self) -> Option<(&Trial, f64)> {
        self.measured().fold(None, |best, next| match best {
            Some(b) if b.1 <= next.1 => Some(b),
            _ => Some(next),
        })
    }

    /// A configuration in words: `MWG=64 NWG=32`.
    pub fn describe(&self, trial: &Trial) -> String {
        let pairs = self.parameters.iter().zip(&trial.configuration);
        let words: Vec<String> = pairs.map(|(name, value)| format!("{name}={value}")).collect();
        words.join(" ")
    }

    /// A key that equal configurations of two spaces with the same parameters share.
    pub fn key(&self, trial: &Trial) -> String {
        let values: Vec<String> = trial.configuration.iter().map(|v| v.to_string()).collect();
        values.join("\u{1f}")
    }
}

/// A space in a few figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The device, if stated.
    pub device: Option<String>,
    /// The kernel, if stated.
    pub kernel: Option<String>,
    /// The problem size, if stated.
    pub problem: Option<String>,
    /// Parameter names.
    pub parameters: Vec<String>,
    /// Configurations tried.
    pub trials: usize,
    /// Of these, without a time.
    pub failed: usize,
    /// The fastest configuration in words.
    pub best: Option<String>,
    /// Its time in microseconds.
    pub best_us: Option<f64>,
    /// Time of the median configuration over the fastest one's.
    pub median_over_best: Option<f64>,
}

impl Space {
    /// The space in a few figures.
    pub fn summary(&self) -> Summary {
        let mut times: Vec<f64> = self.measured().map(|(_, time)| time).collect();
        times.sort_by(f64::total_cmp);
        let best = self.best();
        let median = times.get(times.len() / 2);
        Summary {
            device: self.device.clone(),
            kernel: self.kernel.clone(),
            problem: self.problem.clone(),
            parameters: self.parameters.clone(),
            trials: self.trials.len(),
            failed: self.trials.len() - times.len(),
            best: best.map(|(trial, _)| self.describe(trial)),
            best_us: best.map(|(_, time)| time * self.unit.microseconds()),
            median_over_best: median.zip(best).map(|(median, (_, best))| median / best),
        }
    }
}
