//! Planning: every candidate of the space with its verdict, and the order of the legal ones.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tilewright_ir::facts::{Facts, Family};

use crate::hash::{Canonical, Hash256};
use crate::legality::{self, Rejection};
use crate::mapping::{
    CpuMatrixMapping, GpuMatrixMapping, Mapping, MatrixMapping, Residency, RowMapping,
};
use crate::policy::whole_launch::advice::Advice;
use crate::policy::{
    CandidateFacts, CandidateView, Policy, Score, Term, Unit, check_score, cpu_matrix,
};
use crate::problem::{MatrixProblem, Problem, RowProblem};
use crate::request::{PlanError, Request, SpaceOptions};
use crate::space::{self, Unscored};
use crate::target::{GpuFacts, Target, TargetKind};

/// A candidate: legal with its score, or rejected with its rule.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// How the program would run. For a rejected matrix block it is the distribution that got
    /// furthest through the rules.
    pub mapping: Mapping,
    /// Closed-form facts of the mapping.
    pub facts: CandidateFacts,
    /// The score, or why it may not run.
    pub verdict: Result<Score, Rejection>,
    /// Addends of the score, for explanations; empty for all but the winner.
    pub terms: Vec<Term>,
}

/// The result of planning.
#[derive(Clone, PartialEq, Debug)]
pub struct Ranking {
    /// Name of the target.
    pub target: String,
    /// Hash of the target's facts.
    pub target_hash: Hash256,
    /// Name of the policy.
    pub policy: String,
    /// Unit of all scores.
    pub unit: Unit,
    /// Hash of everything that the ranking depends on.
    pub key: Hash256,
    /// Every candidate, in the order of the space.
    pub candidates: Vec<Candidate>,
    /// Indices of the legal candidates, best first. Equal kernel scores keep the order of the
    /// space.
    pub order: Vec<usize>,
    /// What the policy says about its own trust in the winner, if it can say.
    pub advice: Option<Advice>,
}

impl Ranking {
    /// Index of the winner, if any candidate is legal.
    pub fn chosen(&self) -> Option<usize> {
        self.order.first().copied()
    }

    /// The winner.
    ///
    /// # Errors
    /// No candidate is legal; the error counts them by rule.
    pub fn winner(&self) -> Result<&Candidate, PlanError> {
        self.chosen().and_then(|i| self.candidates.get(i)).ok_or_else(|| {
            let reasons: Vec<String> =
                self.rejections().iter().map(|(rule, n)| format!("{rule} ({n})")).collect();
            PlanError::NoLegalCandidate {
                candidates: self.candidates.len(),
                reasons: reasons.join(", "),
            }
        })
    }

    /// Number of candidates that each rule rejected, by rule name.
    pub fn rejections(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for candidate in &self.candidates {
            if let Err(rejection) = &candidate.verdict {
                *counts.entry(rejection.rule.name()).or_default() += 1;
            }
        }
        counts
    }

    /// The top of the ranking in words: rank, score, its ratio to the winner's, mapping and, for
    /// the winner, the addends.
    pub fn explain(&self, top: usize) -> String {
        let mut text = String::new();
        let legal = self.order.len();
        let total = self.candidates.len();
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "{} of {total} candidates are legal; policy {}, unit {}",
            legal, self.policy, self.unit
        );
        let best = self
            .order
            .first()
            .and_then(|i| self.candidates.get(*i))
            .and_then(|c| c.verdict.as_ref().ok());
        for (rank, &index) in self.order.iter().take(top).enumerate() {
            let Some(candidate) = self.candidates.get(index) else { continue };
            let Ok(score) = &candidate.verdict else { continue };
            let ratio = match best {
                Some(b) if b.kernel > 0.0 => format!("  x{:.3}", score.kernel / b.kernel),
                _ => String::new(),
            };
            let _ = writeln!(
                text,
                "{:>3}. {:>12}{ratio}  {}",
                rank + 1,
                short(score.kernel),
                describe(&candidate.mapping)
            );
            if rank == 0 && !candidate.terms.is_empty() {
                let terms: Vec<String> = candidate
                    .terms
                    .iter()
                    .map(|t| format!("{} {}", t.name, short(t.value)))
                    .collect();
                let _ = writeln!(
                    text,
                    "     program {}, waves {}; terms: {}",
                    short(score.program),
                    short(score.waves),
                    terms.join(", ")
                );
            }
        }
        if let Some(advice) = &self.advice {
            let _ = writeln!(text, "{advice}");
        }
        let rejections = self.rejections();
        if !rejections.is_empty() {
            let parts: Vec<String> =
                rejections.iter().map(|(rule, n)| format!("{n} by {rule}")).collect();
            let _ = writeln!(text, "rejected: {}", parts.join(", "));
        }
        text
    }
}

/// A number with about six significant digits.
fn short(value: f64) -> String {
    if value != 0.0 && (value.abs() >= 1e7 || value.abs() < 1e-3) {
        format!("{value:.4e}")
    } else if value == value.trunc() {
        format!("{value:.0}")
    } else {
        format!("{value:.4}")
    }
}

/// A mapping in one short line.
pub fn describe(mapping: &Mapping) -> String {
    match mapping {
        Mapping::Rows(RowMapping {
            lanes,
            subgroups,
            vector,
            unroll,
            accumulators,
            pack,
            cache,
            fuse,
            cluster,
            split,
            ahead,
            residency,
            stage,
            batch,
            resident,
            leader,
        }) => {
            let threads = u64::from(*lanes) * u64::from(*subgroups) * u64::from(*pack);
            let reuse = if *cache { "cache" } else { "reload" };
            // A vector of a CPU is narrower than any GPU's subgroup.
            let mut text = if *lanes < 32 {
                format!("{lanes} lanes, {reuse}, U {unroll}")
            } else {
                format!("{threads} threads, {reuse}, V {vector}, U {unroll}, P {pack}")
            };
            if *accumulators > 1 {
                let _ = write!(text, ", {accumulators} accumulators");
            }
            if *lanes < 32 && *pack > 1 {
                let _ = write!(text, ", {pack} rows a task");
            }
            if *fuse {
                text.push_str(", fused");
            }
            if *cluster > 1 {
                let _ = write!(text, ", clusters of {cluster}");
            }
            if *leader {
                text.push_str(", exchanged by one subgroup a group");
            }
            if *split > 1 {
                let _ = write!(text, ", rows over {split} groups, a launch a loop");
            }
            if *ahead {
                text.push_str(", loads ahead");
            }
            if *stage {
                text.push_str(", rows in shared memory");
            }
            if *batch > 1 {
                let _ = write!(text, ", {batch} rows at once");
            }
            if *resident > 0 {
                let _ = write!(text, ", {resident} groups a core");
            }
            match residency {
                Residency::Normal => {}
                Residency::Keep => text.push_str(", inputs kept in cache"),
                Residency::Stream => text.push_str(", streamed past the cache"),
                Residency::Part => text.push_str(", part of the inputs kept in cache"),
            }
            text
        }
        Mapping::Matrix(m) => {
            let [bm, bn, bk] = m.block;
            let ([gm, gn], [rm, rn]) = (m.subgroups, m.atoms);
            let mut text = format!(
                "block {bm}x{bn}x{bk}, {} threads, subgroups {gm}x{gn} of {rm}x{rn} atoms",
                m.threads
            );
            for (holds, word) in [
                (m.forward_a, "A in place"),
                (m.forward_b, "B in place"),
                (m.direct, "direct output"),
                (m.overwrite, "overwrite"),
            ] {
                if holds {
                    text.push_str(", ");
                    text.push_str(word);
                }
            }
            text
        }
        Mapping::CpuMatrix(CpuMatrixMapping {
            lanes,
            group: [gm, gn],
            tile: [rows, vectors],
            depth,
            columns,
            pack_a,
            pack_b,
            stream,
            threads,
        }) => {
            let width = u64::from(*vectors) * u64::from(*lanes);
            let mut text = format!(
                "tile {rows}x{width}, group {gm}x{gn}, depth {depth}, columns {columns}, \
                 {threads} threads"
            );
            for (holds, word) in
                [(*pack_a, ", A packed"), (*pack_b, ", B packed"), (*stream, ", streaming output")]
            {
                if holds {
                    text.push_str(word);
                }
            }
            text
        }
        Mapping::GpuMatrix(m) => {
            let ([bm, bn], [wm, wn, wk], [tm, tn]) = (m.block(), m.warps, m.tile);
            let GpuMatrixMapping { depth, stages, unroll, slices, copy, .. } = *m;
            if stages == 1 {
                let [lr, lc] = m.lanes;
                let mut text = format!(
                    "block {bm}x{bn}x{depth}, {wm}x{wn}x{wk} subgroups of {lr}x{lc} lanes with \
                     {tm}x{tn} tiles, operands in place by {} and {}",
                    copy[0], copy[1]
                );
                if slices > 1 {
                    let _ = write!(text, ", {slices} slices");
                }
                return text;
            }
            let mut text = format!(
                "block {bm}x{bn}x{depth}, {wm}x{wn}x{wk} subgroups of {tm}x{tn} tiles, \
                 {stages} stages, {unroll} steps per trip, copies of {} and {}",
                copy[0], copy[1]
            );
            if slices > 1 {
                let _ = write!(text, ", {slices} slices");
            }
            text
        }
    }
}

/// Plans a program on a target with a policy: a pure function of its arguments.
///
/// # Errors
/// The program is in no planned family, a size is missing, the request is illegal, or the policy
/// fails. Candidates that are merely illegal are no error; see [`Ranking::winner`].
pub fn plan(
    request: &Request<'_>,
    target: &Target,
    policy: &dyn Policy,
) -> Result<Ranking, PlanError> {
    let threads = cpu_threads(target, &request.options)?;
    let context = Context { target, policy, threads };
    let explained = match &request.facts.family {
        Family::Rows(facts) => {
            let problem = RowProblem::new(request, facts)?;
            let candidates = context.rows(&problem, &request.options)?;
            context.explain(Problem::Rows(&problem), candidates)
        }
        Family::Matrix(facts) => {
            let problem = MatrixProblem::new(request, facts)?;
            let candidates = context.matrix(&problem, &request.options)?;
            context.explain(Problem::Matrix(&problem), candidates)
        }
        Family::Other(reason) => return Err(PlanError::Family(reason.clone())),
    };
    let target_hash = target.hash();
    Ok(rank(&context, [target_hash, key(request, target_hash, policy)], explained))
}

/// Plans a matrix product whose numbers are at hand.
///
/// # Errors
/// As [`plan`].
pub fn plan_matrix(
    problem: &MatrixProblem,
    target: &Target,
    policy: &dyn Policy,
    options: &SpaceOptions,
) -> Result<Ranking, PlanError> {
    let context = Context { target, policy, threads: cpu_threads(target, options)? };
    let candidates = context.matrix(problem, options)?;
    let explained = context.explain(Problem::Matrix(problem), candidates);
    let mut c = Canonical::new("matrix problem");
    c.text("problem", &format!("{problem:?}"));
    let target_hash = target.hash();
    Ok(rank(&context, [target_hash, combine(c, target_hash, policy, options)], explained))
}

/// Sorts legal candidates by kernel score; a stable sort keeps the order of the space on ties.
/// The ranking, with the hash of the target and the key.
fn rank(context: &Context<'_>, [target_hash, key]: [Hash256; 2], explained: Explained) -> Ranking {
    let Context { target, policy, .. } = *context;
    let Explained { candidates, advice } = explained;
    let mut scored: Vec<(usize, f64)> = candidates
        .iter()
        .enumerate()
        .filter_map(|(i, c)| c.verdict.as_ref().ok().map(|score| (i, score.kernel)))
        .collect();
    // Every score was checked to be finite.
    scored.sort_by(|a, b| a.1.total_cmp(&b.1));
    Ranking {
        target: target.name.clone(),
        target_hash,
        policy: policy.name().to_string(),
        unit: policy.unit(),
        key,
        order: scored.into_iter().map(|(i, _)| i).collect(),
        candidates,
        advice,
    }
}

/// Threads that share a launch: asked for or every core of a CPU; 1 on a GPU.
pub(crate) fn cpu_threads(target: &Target, options: &SpaceOptions) -> Result<u32, PlanError> {
    let Some(cpu) = target.cpu_facts() else { return Ok(1) };
    let cores = cpu.cores.max(1);
    match options.cpu_threads {
        None => Ok(cores),
        Some(n) if (1..=cores).contains(&n) => Ok(n),
        Some(n) => Err(PlanError::illegal(
            legality::Rule::ThreadsLimit,
            format!("{n} threads on a CPU with {cores} cores"),
        )),
    }
}

/// Candidates with what is said of the winner.
struct Explained {
    candidates: Vec<Candidate>,
    advice: Option<Advice>,
}

struct Context<'a> {
    target: &'a Target,
    policy: &'a dyn Policy,
    threads: u32,
}

impl Context<'_> {
    /// Whether candidates come from the spaces of registers.
    fn register_spaces(&self, gpu: &GpuFacts) -> bool {
        self.policy.register_spaces() && gpu.states_registers()
    }

    fn rows(
        &self,
        problem: &RowProblem,
        options: &SpaceOptions,
    ) -> Result<Vec<Candidate>, PlanError> {
        let unscored = match &self.target.kind {
            TargetKind::Gpu(gpu) if self.register_spaces(gpu) => {
                space::gpu_rows::candidates(problem, gpu, options)?
            }
            TargetKind::Gpu(gpu) => space::rows::candidates(problem, gpu, options)?,
            TargetKind::Cpu(cpu) => {
                space::cpu_rows::candidates(problem, cpu, options, self.threads)?
            }
        };
        // A list of results that is collected grows step by step, and candidates are large.
        let mut out = Vec::with_capacity(unscored.len());
        for one in unscored {
            out.push(self.score(Problem::Rows(problem), one)?);
        }
        Ok(out)
    }

    fn matrix(
        &self,
        problem: &MatrixProblem,
        options: &SpaceOptions,
    ) -> Result<Vec<Candidate>, PlanError> {
        let view = Problem::Matrix(problem);
        match &self.target.kind {
            TargetKind::Gpu(gpu) if self.register_spaces(gpu) => {
                let unscored = space::gpu_matrix::space(problem, gpu, options)?;
                unscored.into_iter().map(|u| self.score(view, u)).collect()
            }
            TargetKind::Gpu(gpu) => {
                let rules = self.policy.matrix_rules();
                let entries = space::matrix::entries(problem, gpu, rules, options)?;
                let mut out = Vec::with_capacity(entries.len());
                for entry in entries {
                    let mut best: Option<Candidate> = None;
                    for unscored in entry.distributions {
                        let candidate = self.score(view, unscored)?;
                        if best.as_ref().is_none_or(|best| better(&candidate, best)) {
                            best = Some(candidate);
                        }
                    }
                    out.extend(best);
                }
                Ok(out)
            }
            TargetKind::Cpu(cpu) => {
                let mappings = space::cpu_matrix::candidates(problem, cpu, self.threads);
                let scored = mappings.into_iter().map(|mapping| {
                    let counts = cpu_matrix::CpuMatrixCounts::new(problem, &mapping);
                    let verdict = legality::cpu_matrix::check(problem, cpu, &mapping, &counts);
                    let mapping = Mapping::CpuMatrix(mapping);
                    let facts = CandidateFacts::CpuMatrix(counts);
                    self.score(view, Unscored { mapping, facts, verdict })
                });
                scored.collect()
            }
        }
    }

    /// Scores a legal candidate and checks the score; passes a rejected one on.
    fn score(&self, problem: Problem<'_>, unscored: Unscored) -> Result<Candidate, PlanError> {
        let Unscored { mapping, facts, verdict } = unscored;
        let view = CandidateView {
            target: self.target,
            problem,
            mapping: &mapping,
            facts: &facts,
            cpu_threads: self.threads,
        };
        let verdict = match verdict {
            Err(rejection) => Err(rejection),
            Ok(()) => Ok(check_score(self.policy.name(), self.policy.score(&view)?)?),
        };
        Ok(Candidate { mapping, facts, verdict, terms: Vec::new() })
    }

    /// Gives the winner its addends, and asks the policy for advice. Nobody reads the addends of
    /// the others, and making them for every candidate would take longer than scoring.
    fn explain(&self, problem: Problem<'_>, mut candidates: Vec<Candidate>) -> Explained {
        let mut winner: Option<(usize, f64)> = None;
        let mut scores = Vec::with_capacity(candidates.len());
        for (i, candidate) in candidates.iter().enumerate() {
            if let Ok(score) = &candidate.verdict {
                scores.push(score.kernel);
                if winner.is_none_or(|(_, best)| score.kernel < best) {
                    winner = Some((i, score.kernel));
                }
            }
        }
        let Some(winner) = winner.and_then(|(i, _)| candidates.get_mut(i)) else {
            return Explained { candidates, advice: None };
        };
        let view = CandidateView {
            target: self.target,
            problem,
            mapping: &winner.mapping,
            facts: &winner.facts,
            cpu_threads: self.threads,
        };
        let terms = self.policy.terms(&view);
        let advice = self.policy.advise(&view, &mut scores);
        winner.terms = terms;
        Explained { candidates, advice }
    }
}

/// Whether a distribution takes the place of an earlier one: a legal one of a rejected one, a
/// strictly smaller kernel score, or a rejected one that got strictly further.
fn better(candidate: &Candidate, best: &Candidate) -> bool {
    match (&candidate.verdict, &best.verdict) {
        (Ok(a), Ok(b)) => a.kernel < b.kernel,
        (Ok(_), Err(_)) => true,
        (Err(_), Ok(_)) => false,
        (Err(a), Err(b)) => legality::matrix::reach(a.rule) > legality::matrix::reach(b.rule),
    }
}

fn key(request: &Request<'_>, target_hash: Hash256, policy: &dyn Policy) -> Hash256 {
    let mut c = Canonical::new("plan");
    c.text("program", &tilewright_ir::text::print(request.program));
    facts_text(&mut c, request.facts);
    for (dim, size) in &request.sizes {
        c.integer(&format!("size {dim}"), *size);
    }
    combine(c, target_hash, policy, &request.options)
}

fn facts_text(c: &mut Canonical, facts: &Facts) {
    c.text("facts", &format!("{facts:?}"));
}

fn combine(
    mut c: Canonical,
    target_hash: Hash256,
    policy: &dyn Policy,
    options: &SpaceOptions,
) -> Hash256 {
    c.text("target", &target_hash.to_string())
        .text("policy", policy.name())
        .text("unit", policy.unit().name())
        .text("parameters", &policy.parameters())
        .text("options", &format!("{options:?}"));
    c.hash()
}

/// The matrix mapping of a candidate, if it is one.
pub fn matrix_mapping(candidate: &Candidate) -> Option<&MatrixMapping> {
    match &candidate.mapping {
        Mapping::Matrix(mapping) => Some(mapping),
        _ => None,
    }
}
