//! What picks are worth, and rules without a model to compare them with.

use std::collections::{BTreeMap, BTreeSet};

use super::data::{DataError, Dataset, Split};
use super::fit::{OuterFold, Pick, mean, picks_by};

/// The picks of one procedure.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// The procedure.
    pub name: String,
    /// Its pick in every case.
    pub picks: Vec<Pick>,
}

impl Evaluation {
    /// The picks of all outer folds.
    pub fn of_folds(name: &str, folds: &[OuterFold]) -> Self {
        let picks = folds.iter().flat_map(|f| f.picks.iter().cloned()).collect();
        Evaluation { name: name.to_string(), picks }
    }

    /// Picks by a score that needs no fit.
    pub fn of_scores(name: &str, data: &Dataset, scores: &[f64]) -> Self {
        let score = |row: usize| scores.get(row).copied().unwrap_or(f64::INFINITY);
        Evaluation { name: name.to_string(), picks: picks_by(data, &data.all(), score) }
    }

    /// Mean regret.
    pub fn mean(&self) -> f64 {
        mean(self.picks.iter().map(Pick::regret))
    }

    /// Median regret, the mean of the middle two of an even number.
    pub fn median(&self) -> f64 {
        let mut regrets: Vec<f64> = self.picks.iter().map(Pick::regret).collect();
        median(&mut regrets)
    }

    /// Largest regret.
    pub fn max(&self) -> f64 {
        self.picks.iter().map(Pick::regret).fold(0.0, f64::max)
    }

    /// Mean regret when the three best-ranked candidates of each case are measured.
    pub fn top3(&self) -> f64 {
        mean(self.picks.iter().map(Pick::top3_regret))
    }
}

/// The median; the values are sorted on the way. 0 of none.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.len() % 2, values.get(middle)) {
        (_, None) => 0.0,
        (1, Some(value)) => *value,
        (_, Some(value)) => (values[middle - 1] + value) / 2.0,
    }
}

/// Candidates that are there in every case of the rows, by name.
fn everywhere(data: &Dataset, rows: &[usize]) -> BTreeSet<String> {
    let mut common: Option<BTreeSet<String>> = None;
    for (_, rows) in data.cases(rows) {
        let names: BTreeSet<String> =
            rows.iter().map(|r| data.samples()[*r].candidate.clone()).collect();
        common = Some(match common {
            None => names,
            Some(common) => common.intersection(&names).cloned().collect(),
        });
    }
    common.unwrap_or_default()
}

/// The candidate that, taken in every case, has the smallest mean regret over the given rows;
/// only candidates that every case has count, ties go to the first by name. `None` where there is
/// no such candidate.
pub fn best_constant(data: &Dataset, rows: &[usize]) -> Option<String> {
    let common = everywhere(data, rows);
    let mut regrets: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
    for (_, rows) in data.cases(rows) {
        let best = rows.iter().map(|r| data.samples()[*r].label).fold(f64::INFINITY, f64::min);
        for row in rows {
            let sample = &data.samples()[row];
            if common.contains(&sample.candidate) {
                regrets.entry(&sample.candidate).or_default().push(sample.label / best - 1.0);
            }
        }
    }
    let mut best: Option<(f64, &String)> = None;
    for (name, regrets) in &regrets {
        let mean = mean(regrets.iter().copied());
        if best.is_none_or(|(b, _)| mean < b) {
            best = Some((mean, name));
        }
    }
    best.map(|(_, name)| name.clone())
}

/// Picks of a constant rule: the named candidate in every case, or the first one where it isn't.
pub(super) fn constant_picks(data: &Dataset, rows: &[usize], name: &str) -> Vec<Pick> {
    picks_by(data, rows, |row| if data.samples()[row].candidate == name { 0.0 } else { 1.0 })
}

/// The best constant rule under leave-one-out: chosen on the rest, taken in the held-out group.
///
/// # Errors
/// [`DataError::Groups`] with fewer than two groups.
pub fn nested_constant(data: &Dataset, split: Split) -> Result<Evaluation, DataError> {
    let all = data.all();
    let groups = data.groups(&all, split);
    if groups.len() < 2 {
        return Err(DataError::Groups { groups: groups.len() });
    }
    let mut picks = Vec::new();
    for (_, held) in groups {
        let rest: Vec<usize> = all.iter().copied().filter(|r| !held.contains(r)).collect();
        let name = best_constant(data, &rest).unwrap_or_default();
        picks.extend(constant_picks(data, &held, &name));
    }
    Ok(Evaluation { name: "best constant rule, chosen without the shape".to_string(), picks })
}

impl Evaluation {
    /// The constant rule of that name in every case.
    pub fn of_constant(data: &Dataset, name: &str) -> Self {
        Evaluation {
            name: format!("best constant rule: {name}"),
            picks: constant_picks(data, &data.all(), name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Design, Sample};
    use super::*;

    fn data() -> Dataset {
        let row = |case: &str, candidate: &str, label| Sample {
            case: case.to_string(),
            shape: case.to_string(),
            candidate: candidate.to_string(),
            label,
            ..Sample::default()
        };
        let samples = vec![
            row("a", "x", 1.0),
            row("a", "y", 2.0),
            row("b", "x", 3.0),
            row("b", "y", 2.0),
            row("b", "z", 1.0),
        ];
        let design = Design {
            name: "one".to_string(),
            features: vec!["one".to_string()],
            rows: vec![vec![1.0]; 5],
        };
        Dataset::new(samples, vec![design]).unwrap()
    }

    #[test]
    fn the_best_constant_rule_is_there_in_every_case() {
        let data = data();
        // z is best in b but not in a; y loses 1 and 1, x loses 0 and 2: a tie, to the first.
        assert_eq!(best_constant(&data, &data.all()).as_deref(), Some("x"));
        let rule = Evaluation::of_constant(&data, "x");
        assert_eq!((rule.mean(), rule.max()), (1.0, 2.0));
        // Without a, z is best in b, and a hasn't it: its first candidate is taken.
        assert_eq!(nested_constant(&data, Split::Shape).unwrap().picks[0].row, 0);
    }

    #[test]
    fn medians_of_even_and_odd_numbers() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&mut []), 0.0);
    }
}
