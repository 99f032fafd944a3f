//! `whole-launch`: a fitted time of the whole launch, in microseconds, for rows and matrix
//! products on GPUs and CPUs.
//!
//! A model is a sum of at most [`MAX_COEFFICIENTS`] physical terms with nonnegative coefficients.
//! Terms of a GPU's critical path are multiplied by the number of [`passes`] in which the machine
//! takes the launch; how many subgroups it runs at once (its capacity) isn't known, so a model
//! may hold the same term at several capacities, which makes saturation gradual. Unweighted
//! averaging of fits gives exactly such a model (`crate::calibrate::whole_launch`).
//!
//! Beside the time a model has a [`Confidence`], set on training data alone, from which
//! [`advice`] takes an interval, a shortlist, abstention and the guard of an incumbent.

pub mod advice;
mod cpu_matrix;
mod cpu_rows;
mod long_rows;
mod matrix;
pub(in crate::policy) mod register_matrix;
mod register_rows;
mod rows;

use super::{CandidateView, Policy, PolicyError, Score, Term, Unit, unsupported};
use crate::hash::Canonical;
use crate::mapping::Mapping;
use crate::profile::ProfileError;
use crate::target::TargetKind;

/// Name of the policy.
pub const NAME: &str = "whole-launch";

/// Most coefficients of one model.
pub const MAX_COEFFICIENTS: usize = 12;

/// Most inputs of a family.
pub const MAX_INPUTS: usize = 12;

/// What kind of candidates a model is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Family {
    /// Row programs on a GPU.
    GpuRows,
    /// Matrix products of MPP operations on a GPU.
    GpuMatrix,
    /// Row programs on a CPU.
    CpuRows,
    /// Matrix products of register tiles on a CPU.
    CpuMatrix,
    /// Row programs on a GPU whose register file is known.
    GpuRegisterRows,
    /// Matrix products of register tiles on such a GPU.
    GpuRegisterMatrix,
}

/// Numbers of one candidate, in the order of [`Family::inputs`]; the rest is 0.
pub type Inputs = [f64; MAX_INPUTS];

/// A term of a family.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TermInfo {
    /// Its name in profiles.
    pub name: &'static str,
    /// Whether it is multiplied by the passes at a capacity.
    pub saturates: bool,
    /// What it counts.
    pub what: &'static str,
}

const fn term(name: &'static str, saturates: bool, what: &'static str) -> TermInfo {
    TermInfo { name, saturates, what }
}

impl Family {
    /// Every family.
    pub const ALL: [Family; 6] = [
        Family::GpuRows,
        Family::GpuMatrix,
        Family::CpuRows,
        Family::CpuMatrix,
        Family::GpuRegisterRows,
        Family::GpuRegisterMatrix,
    ];

    /// The name in profiles and training data.
    pub fn name(self) -> &'static str {
        match self {
            Family::GpuRows => "gpu-rows",
            Family::GpuMatrix => "gpu-matrix",
            Family::CpuRows => "cpu-rows",
            Family::CpuMatrix => "cpu-matrix",
            Family::GpuRegisterRows => "gpu-register-rows",
            Family::GpuRegisterMatrix => "gpu-register-matrix",
        }
    }

    /// The family of that name.
    pub fn by_name(name: &str) -> Option<Family> {
        Family::ALL.into_iter().find(|f| f.name() == name)
    }

    /// Names of the inputs: what a training row must state.
    pub fn inputs(self) -> &'static [&'static str] {
        match self {
            Family::GpuRows => &rows::INPUTS,
            Family::GpuMatrix => &matrix::INPUTS,
            Family::CpuRows => &cpu_rows::INPUTS,
            Family::CpuMatrix => &cpu_matrix::INPUTS,
            Family::GpuRegisterRows => &register_rows::INPUTS,
            Family::GpuRegisterMatrix => &register_matrix::INPUTS,
        }
    }

    /// Whether the inputs are microseconds at prices that were fitted to many shapes, so that
    /// coefficients of 1 are an estimate.
    pub fn is_priced(self) -> bool {
        matches!(self, Family::GpuRegisterRows | Family::GpuRegisterMatrix)
    }

    /// The terms that a model may have.
    pub fn terms(self) -> &'static [TermInfo] {
        match self {
            Family::GpuRows => &rows::TERMS,
            Family::GpuMatrix => &matrix::TERMS,
            Family::CpuRows => &cpu_rows::TERMS,
            Family::CpuMatrix => &cpu_matrix::TERMS,
            Family::GpuRegisterRows => &register_rows::TERMS,
            Family::GpuRegisterMatrix => &register_matrix::TERMS,
        }
    }

    /// Index of a term.
    pub fn term(self, name: &str) -> Option<usize> {
        self.terms().iter().position(|t| t.name == name)
    }

    /// The value of a term: at a capacity if it saturates, which is 1 or more.
    pub fn value(self, term: usize, capacity: Option<u32>, inputs: &Inputs) -> f64 {
        let once = self.once(term, inputs);
        match capacity {
            Some(capacity) => once * self.passes(capacity, inputs),
            None => once,
        }
    }

    /// The value of a term in one pass.
    fn once(self, term: usize, inputs: &Inputs) -> f64 {
        match self {
            Family::GpuRows => rows::once(term, inputs),
            Family::GpuMatrix => matrix::once(term, inputs),
            // Elsewhere each term is an input.
            Family::CpuRows
            | Family::CpuMatrix
            | Family::GpuRegisterRows
            | Family::GpuRegisterMatrix => inputs.get(term).copied().unwrap_or(0.0),
        }
    }

    /// The passes of a launch at a capacity.
    fn passes(self, capacity: u32, inputs: &Inputs) -> f64 {
        match self {
            // Both GPU families start with programs, subgroups and scalars.
            Family::GpuRows | Family::GpuMatrix => {
                passes(inputs[0], inputs[1], inputs[2], f64::from(capacity))
            }
            // What runs at once is known there: passes are part of the inputs.
            Family::CpuRows
            | Family::CpuMatrix
            | Family::GpuRegisterRows
            | Family::GpuRegisterMatrix => 1.0,
        }
    }

    /// The family of a candidate and its inputs.
    ///
    /// # Errors
    /// The candidate is of no family, or a fact is unknown.
    pub fn of(view: &CandidateView<'_>) -> Result<(Family, Inputs), PolicyError> {
        Ok(match (&view.target.kind, view.mapping) {
            (TargetKind::Gpu(gpu), Mapping::Rows(_)) if gpu.states_registers() => {
                (Family::GpuRegisterRows, register_rows::inputs(view)?)
            }
            (TargetKind::Gpu(_), Mapping::GpuMatrix(_)) => {
                (Family::GpuRegisterMatrix, register_matrix::inputs(view)?)
            }
            (TargetKind::Gpu(_), Mapping::Rows(_)) => (Family::GpuRows, rows::inputs(view)?),
            (TargetKind::Gpu(_), Mapping::Matrix(_)) => (Family::GpuMatrix, matrix::inputs(view)?),
            (TargetKind::Cpu(_), Mapping::Rows(_)) => (Family::CpuRows, cpu_rows::inputs(view)?),
            (TargetKind::Cpu(_), Mapping::CpuMatrix(_)) => {
                (Family::CpuMatrix, cpu_matrix::inputs(view)?)
            }
            _ => return Err(unsupported(NAME, view)),
        })
    }
}

/// Inputs from a list of numbers; more than [`MAX_INPUTS`] never occur.
fn padded(values: &[f64]) -> Inputs {
    let mut inputs = [0.0; MAX_INPUTS];
    for (to, from) in inputs.iter_mut().zip(values) {
        *to = *from;
    }
    inputs
}

/// ln(1 + eˣ), about the larger of x and 0.
fn soft(x: f64) -> f64 {
    x.max(0.0) + libm::log1p(libm::exp(-x.abs()))
}

/// The share of a working set that a level of cache doesn't hold: a set that is larger than the
/// level finds as much of itself there as fits.
fn share_beyond(level_bytes: f64, working_set: f64) -> f64 {
    if working_set > level_bytes { 1.0 - level_bytes / working_set } else { 0.0 }
}

/// How often a machine that runs `capacity` subgroups at once must take whole programs until all
/// are done: ⌈programs / ⌊capacity/(subgroups·pressure)⌋⌉, at least 1. The last pass counts in
/// full (tail quantization), and `pressure` is max(1, scalars/32): a worker that keeps more than
/// 32 scalars in registers leaves room for fewer others (32 is the reference system's preferred
/// number of fragment scalars a lane).
pub fn passes(programs: f64, subgroups: f64, scalars: f64, capacity: f64) -> f64 {
    let pressure = (scalars / 32.0).max(1.0);
    let at_once = (capacity / (subgroups * pressure)).floor().max(1.0);
    (programs / at_once).ceil().max(1.0)
}

/// A term with its coefficient.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct WeightedTerm {
    /// Index into [`Family::terms`].
    pub term: usize,
    /// Capacity in subgroups, if the term saturates.
    pub capacity: Option<u32>,
    /// Microseconds per unit.
    pub coefficient: f64,
}

/// A fitted sum of terms.
#[derive(Clone, PartialEq, Debug)]
pub struct Model {
    family: Family,
    terms: Vec<WeightedTerm>,
}

/// Why terms make no model.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ModelError {
    /// No terms at all, or more than the limit.
    #[error("a {family} model has 1 to {MAX_COEFFICIENTS} coefficients, not {count}")]
    Count { family: &'static str, count: usize },
    /// A term that the family hasn't.
    #[error("`{term}` is no term of {family}")]
    Term { family: &'static str, term: String },
    /// A capacity where there must be none, none where there must be one, or 0.
    #[error("term `{term}` of {family}: {problem}")]
    Capacity { family: &'static str, term: &'static str, problem: &'static str },
    /// Not finite, or negative.
    #[error("coefficient of `{term}` is {value}: it must be finite and not negative")]
    Coefficient { term: &'static str, value: String },
    /// The same term at the same capacity twice.
    #[error("term `{term}` of {family} occurs twice")]
    Duplicate { family: &'static str, term: &'static str },
    /// Every coefficient is 0.
    #[error("every coefficient of the {family} model is zero: it can't rank anything")]
    Zero { family: &'static str },
}

impl Model {
    /// Checks the terms of a model.
    ///
    /// # Errors
    /// [`ModelError`] names the first thing that is wrong.
    pub fn new(family: Family, terms: Vec<WeightedTerm>) -> Result<Self, ModelError> {
        let name = family.name();
        if terms.is_empty() || terms.len() > MAX_COEFFICIENTS {
            return Err(ModelError::Count { family: name, count: terms.len() });
        }
        for (i, t) in terms.iter().enumerate() {
            let Some(info) = family.terms().get(t.term) else {
                return Err(ModelError::Term { family: name, term: format!("#{}", t.term) });
            };
            let problem = match (info.saturates, t.capacity) {
                (true, None) => Some("it needs a capacity"),
                (true, Some(0)) => Some("its capacity is 0"),
                (false, Some(_)) => Some("it takes no capacity"),
                _ => None,
            };
            if let Some(problem) = problem {
                return Err(ModelError::Capacity { family: name, term: info.name, problem });
            }
            if !(t.coefficient.is_finite() && t.coefficient >= 0.0) {
                let value = t.coefficient.to_string();
                return Err(ModelError::Coefficient { term: info.name, value });
            }
            let same = |o: &WeightedTerm| o.term == t.term && o.capacity == t.capacity;
            if terms.iter().take(i).any(same) {
                return Err(ModelError::Duplicate { family: name, term: info.name });
            }
        }
        if terms.iter().all(|t| t.coefficient == 0.0) {
            return Err(ModelError::Zero { family: name });
        }
        Ok(Model { family, terms })
    }

    /// The family.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The terms, in the order in which they are added.
    pub fn terms(&self) -> &[WeightedTerm] {
        &self.terms
    }

    /// The name of a term, with its capacity: `rounds@512`.
    pub fn label(&self, term: &WeightedTerm) -> String {
        label(self.family, term.term, term.capacity)
    }

    /// Predicted microseconds of the whole launch, first term to last.
    pub fn predict(&self, inputs: &Inputs) -> f64 {
        let mut sum = 0.0;
        self.each(inputs, |_, value| sum += value);
        sum
    }

    /// Calls with every term and its share of the prediction.
    fn each(&self, inputs: &Inputs, mut call: impl FnMut(&WeightedTerm, f64)) {
        // A few capacities are shared by many terms, and passes cost more than the rest.
        let mut known = [(0u32, 0.0); MAX_COEFFICIENTS];
        let mut count = 0;
        for t in &self.terms {
            let mut value = t.coefficient * self.family.once(t.term, inputs);
            if let Some(capacity) = t.capacity {
                let passes = match known[..count].iter().find(|(c, _)| *c == capacity) {
                    Some((_, passes)) => *passes,
                    None => {
                        let passes = self.family.passes(capacity, inputs);
                        known[count] = (capacity, passes);
                        count += 1;
                        passes
                    }
                };
                value *= passes;
            }
            call(t, value);
        }
    }
}

/// The name of a term, with its capacity: `rounds@512`.
pub fn label(family: Family, term: usize, capacity: Option<u32>) -> String {
    let name = family.terms().get(term).map_or("?", |t| t.name);
    match capacity {
        Some(capacity) => format!("{name}@{capacity}"),
        None => name.to_string(),
    }
}

/// What training data say about the trust that a model deserves.
#[derive(Clone, PartialEq, Debug)]
pub struct Confidence {
    /// Share of labels that the interval is to cover, 0 to 1.
    pub level: f64,
    /// The interval is prediction·low to prediction·high: quantiles of label/prediction over the
    /// training rows, each predicted by a fit that hadn't seen its shape.
    pub low: f64,
    /// See `low`.
    pub high: f64,
    /// Candidates predicted at most `slack` times the best prediction are worth measuring: the
    /// `level` quantile, over training cases predicted by fits that hadn't seen their shape, of the
    /// least prediction among the candidates within 2 % of the best label, over that of the pick.
    pub slack: f64,
    /// A challenger replaces an incumbent only if its predicted gain exceeds this: see
    /// [`covering_margin`](crate::calibrate::guard::covering_margin).
    pub margin: f64,
    /// Smallest and largest value of every input among the training rows.
    pub ranges: Vec<[f64; 2]>,
    /// Training rows.
    pub rows: u64,
    /// Training cases.
    pub cases: u64,
    /// Training shapes.
    pub shapes: u64,
}

/// A model with its confidence.
#[derive(Clone, PartialEq, Debug)]
pub struct FamilyFit {
    /// The model.
    pub model: Model,
    /// Its confidence.
    pub confidence: Confidence,
}

/// The policy: one fit a family.
#[derive(Clone, PartialEq, Debug)]
pub struct WholeLaunch {
    target: String,
    fits: Vec<FamilyFit>,
}

impl WholeLaunch {
    /// The policy with these fits, made on a target; of two of one family the first counts.
    pub fn new(target: &str, fits: Vec<FamilyFit>) -> Self {
        WholeLaunch { target: target.to_string(), fits }
    }

    /// The fit of a family, if there is one.
    pub fn fit(&self, family: Family) -> Option<&FamilyFit> {
        self.fits.iter().find(|f| f.model.family == family)
    }

    fn fitted(&self, view: &CandidateView<'_>) -> Result<(&FamilyFit, Inputs), PolicyError> {
        if view.target.name != self.target {
            let (profile, target) = (self.target.clone(), view.target.name.clone());
            return Err(ProfileError::Target { profile, target }.into());
        }
        let (family, inputs) = Family::of(view)?;
        let fit = self.fit(family).ok_or_else(|| PolicyError::Unsupported {
            policy: NAME.to_string(),
            what: format!("{}: the profile has no fit of it", family.name()),
        })?;
        Ok((fit, inputs))
    }
}

impl Policy for WholeLaunch {
    fn name(&self) -> &str {
        NAME
    }

    fn unit(&self) -> Unit {
        Unit::Microseconds
    }

    fn register_spaces(&self) -> bool {
        true
    }

    fn parameters(&self) -> String {
        let mut c = Canonical::new(NAME);
        c.text("target", &self.target);
        for fit in &self.fits {
            c.text("family", fit.model.family.name());
            for t in &fit.model.terms {
                c.float(&fit.model.label(t), t.coefficient);
            }
            let trust = &fit.confidence;
            c.float("slack", trust.slack).float("margin", trust.margin);
        }
        c.as_str().to_string()
    }

    /// Kernel score: predicted microseconds. Waves: passes at the largest capacity of the model,
    /// 1 without one. Program score: the part of the prediction that saturates, for one pass.
    fn score(&self, view: &CandidateView<'_>) -> Result<Score, PolicyError> {
        let (fit, inputs) = self.fitted(view)?;
        let (mut path, mut kernel, mut largest) = (0.0, 0.0, 0);
        fit.model.each(&inputs, |t, value| {
            kernel += value;
            if let Some(capacity) = t.capacity {
                path += value;
                largest = largest.max(capacity);
            }
        });
        let waves = if largest > 0 { fit.model.family.passes(largest, &inputs) } else { 1.0 };
        Ok(Score { program: path / waves, waves, kernel })
    }

    fn terms(&self, view: &CandidateView<'_>) -> Vec<Term> {
        let Ok((fit, inputs)) = self.fitted(view) else { return Vec::new() };
        let family = fit.model.family;
        // The same term at several capacities is one addend for a reader.
        let mut shares = [0.0; MAX_INPUTS];
        fit.model.each(&inputs, |t, value| {
            if let Some(share) = shares.get_mut(t.term) {
                *share += value;
            }
        });
        let named = family.terms().iter().zip(shares).filter(|(_, value)| *value > 0.0);
        named.map(|(info, value)| Term::new(info.name, value)).collect()
    }

    fn advise(&self, winner: &CandidateView<'_>, scores: &mut [f64]) -> Option<advice::Advice> {
        let (fit, inputs) = self.fitted(winner).ok()?;
        scores.sort_by(f64::total_cmp);
        advice::advise(fit, scores, &inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_count_whole_programs() {
        // 512/4 = 128 programs at once.
        assert_eq!(passes(128.0, 4.0, 8.0, 512.0), 1.0);
        assert_eq!(passes(129.0, 4.0, 8.0, 512.0), 2.0);
        // 64 scalars leave room for half as many.
        assert_eq!(passes(128.0, 4.0, 64.0, 512.0), 2.0);
        // A program wider than the machine still runs.
        assert_eq!(passes(3.0, 32.0, 8.0, 16.0), 3.0);
    }

    #[test]
    fn every_family_names_its_terms_once() {
        for family in Family::ALL {
            assert_eq!(Family::by_name(family.name()), Some(family));
            assert!(family.inputs().len() <= MAX_INPUTS);
            let mut names: Vec<&str> = family.terms().iter().map(|t| t.name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), family.terms().len());
        }
    }

    #[test]
    fn bad_models_are_refused_by_name() {
        let good = WeightedTerm { term: 0, capacity: None, coefficient: 1.0 };
        let model = |terms| Model::new(Family::GpuRows, terms);
        assert!(model(vec![good]).is_ok());
        assert!(matches!(model(vec![]), Err(ModelError::Count { count: 0, .. })));
        assert!(matches!(model(vec![good; 13]), Err(ModelError::Count { count: 13, .. })));
        assert!(matches!(model(vec![good, good]), Err(ModelError::Duplicate { .. })));
        let with = |edit: fn(&mut WeightedTerm)| {
            let mut t = good;
            edit(&mut t);
            model(vec![t])
        };
        assert!(matches!(with(|t| t.term = 99), Err(ModelError::Term { .. })));
        assert!(matches!(with(|t| t.capacity = Some(4)), Err(ModelError::Capacity { .. })));
        assert!(matches!(with(|t| t.coefficient = -1.0), Err(ModelError::Coefficient { .. })));
        assert!(matches!(with(|t| t.coefficient = f64::NAN), Err(ModelError::Coefficient { .. })));
        assert!(matches!(with(|t| t.coefficient = 0.0), Err(ModelError::Zero { .. })));
        let rounds = Family::GpuRows.term("rounds").unwrap();
        let bare = WeightedTerm { term: rounds, capacity: None, coefficient: 1.0 };
        assert!(matches!(model(vec![bare]), Err(ModelError::Capacity { .. })));
    }
}
