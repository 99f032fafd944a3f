//! What picks are worth, and rules without a model to compare them with.

use std::collections::BTreeMap;

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

/// Candidates in the order in which a rule without a model prefers them, by their mean regret over
/// the cases among the rows that have them; ties go to the first by name. A candidate that fewer
/// than half of the cases have comes after all others.
pub fn preference(data: &Dataset, rows: &[usize]) -> Vec<String> {
    let cases = data.cases(rows);
    let mut regrets: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
    for (_, rows) in &cases {
        let best = rows.iter().map(|r| data.samples()[*r].label).fold(f64::INFINITY, f64::min);
        for row in rows {
            let sample = &data.samples()[*row];
            regrets.entry(&sample.candidate).or_default().push(sample.label / best - 1.0);
        }
    }
    let mut order: Vec<(bool, f64, &String)> = regrets
        .iter()
        .map(|(name, regrets)| {
            (2 * regrets.len() < cases.len(), mean(regrets.iter().copied()), *name)
        })
        .collect();
    // A stable sort of names in order.
    order.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    order.into_iter().map(|(_, _, name)| name.clone()).collect()
}

/// Picks of the constant rule: in every case the first of the preferred candidates that it has.
pub(super) fn constant_picks(data: &Dataset, rows: &[usize], order: &[String]) -> Vec<Pick> {
    picks_by(data, rows, |row| {
        let name = &data.samples()[row].candidate;
        order.iter().position(|o| o == name).unwrap_or(order.len()) as f64
    })
}

/// The constant rule under leave-one-out: its order is made on the rest, and taken in the held-out
/// group.
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
        let rest = data.without(&all, &held);
        picks.extend(constant_picks(data, &held, &preference(data, &rest)));
    }
    Ok(Evaluation { name: "best constant rule, chosen without the shape".to_string(), picks })
}

impl Evaluation {
    /// The best constant rule, chosen on all rows: it has seen every label.
    pub fn of_constant(data: &Dataset) -> Self {
        let all = data.all();
        let order = preference(data, &all);
        let name = order.first().map_or("none", String::as_str);
        Evaluation {
            name: format!("best constant rule ({name})"),
            picks: constant_picks(data, &all, &order),
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
    fn the_constant_rule_falls_back_where_its_choice_is_missing() {
        let data = data();
        // z loses 0 in half of the cases; y loses 1 and 1, x 0 and 2: a tie, to the first.
        assert_eq!(preference(&data, &data.all()), ["z", "x", "y"]);
        let rule = Evaluation::of_constant(&data);
        assert_eq!((rule.mean(), rule.max()), (0.0, 0.0));
        assert_eq!(rule.picks.iter().map(|p| p.row).collect::<Vec<_>>(), [0, 4]);
        // Without a the order is z, y, x, and a has no z.
        let nested = nested_constant(&data, Split::Shape).unwrap();
        assert_eq!(nested.picks[0].row, 1);
    }

    #[test]
    fn medians_of_even_and_odd_numbers() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&mut []), 0.0);
    }
}
