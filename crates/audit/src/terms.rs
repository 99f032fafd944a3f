//! Values of a model's terms, as `docs/formats/profile.md` defines them.

use crate::record::Term;

/// Lanes whose scalars count once in the occupancy of a GPU.
const SCALARS: f64 = 32.0;

/// The value of every term for a candidate's inputs. `None` where one isn't defined.
pub fn values(family: &str, terms: &[Term], names: &[String], inputs: &[f64]) -> Option<Vec<f64>> {
    let input = |name: &str| {
        let position = names.iter().position(|n| n == name)?;
        inputs.get(position).copied()
    };
    terms.iter().map(|term| value(family, term, &input)).collect()
}

fn value(family: &str, term: &Term, input: &dyn Fn(&str) -> Option<f64>) -> Option<f64> {
    match (family, term.capacity) {
        ("gpu-rows", None) => Some(match term.term.as_str() {
            "launch" => 1.0,
            "distinct_bytes" => input("distinct_bytes")?,
            "reread_bytes" => (input("global_bytes")? - input("distinct_bytes")?).max(0.0),
            _ => return None,
        }),
        ("gpu-rows", Some(capacity)) => {
            let subgroups = input("subgroups")?;
            let per_pass = match term.term.as_str() {
                "rounds" => input("scalar_rounds")?,
                "collective_width" => input("reductions")? * subgroups,
                "collective_depth" => input("reductions")? * (1.0 + subgroups.log2().ceil()),
                _ => return None,
            };
            Some(per_pass * passes(capacity, input, "private_scalars")?)
        }
        ("gpu-matrix", None) => Some(match term.term.as_str() {
            "launch" => 1.0,
            "footprint" => input("footprint_fragments")? * input("programs")?,
            "reads" => input("fragment_reads")? * input("programs")?,
            _ => return None,
        }),
        ("gpu-matrix", Some(capacity)) => {
            let all = match term.term.as_str() {
                "issues" => input("matrix_issues")?,
                "elements" => input("independent_elements")?,
                _ => return None,
            };
            Some(all / input("subgroups")? * passes(capacity, input, "fragment_scalars")?)
        }
        // Threads of a CPU are known: nothing saturates.
        (_, Some(_)) => None,
        (_, None) => input(&term.term),
    }
}

/// How many times the machine is filled.
fn passes(capacity: f64, input: &dyn Fn(&str) -> Option<f64>, scalars: &str) -> Option<f64> {
    let (programs, subgroups) = (input("programs")?, input("subgroups")?);
    let occupied = subgroups * (input(scalars)? / SCALARS).max(1.0);
    let at_once = (capacity / occupied).floor().max(1.0);
    Some((programs / at_once).ceil().max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(family: &str, term: &str, capacity: Option<f64>, inputs: &[(&str, f64)]) -> Option<f64> {
        let names: Vec<String> = inputs.iter().map(|i| i.0.to_string()).collect();
        let numbers: Vec<f64> = inputs.iter().map(|i| i.1).collect();
        let term = Term { term: term.to_string(), capacity, coefficient: 1.0 };
        values(family, &[term], &names, &numbers).map(|v| v[0])
    }

    #[test]
    fn passes_count_whole_fillings() {
        // 512 subgroups hold ⌊512/(4·2)⌋ = 64 programs of 4 subgroups with 64 scalars.
        let inputs = |programs| {
            [
                ("programs", programs),
                ("subgroups", 4.0),
                ("private_scalars", 64.0),
                ("scalar_rounds", 10.0),
                ("reductions", 2.0),
            ]
        };
        let capacity = Some(512.0);
        assert_eq!(of("gpu-rows", "rounds", capacity, &inputs(64.0)), Some(10.0));
        assert_eq!(of("gpu-rows", "rounds", capacity, &inputs(65.0)), Some(20.0));
        assert_eq!(of("gpu-rows", "collective_width", capacity, &inputs(64.0)), Some(8.0));
        assert_eq!(of("gpu-rows", "collective_depth", capacity, &inputs(64.0)), Some(6.0));
        assert_eq!(of("gpu-rows", "rounds", None, &inputs(64.0)), None);
    }

    #[test]
    fn a_cpu_term_is_its_input() {
        assert_eq!(of("cpu-rows", "chain", None, &[("chain", 7.5)]), Some(7.5));
        assert_eq!(of("cpu-rows", "chain", Some(8.0), &[("chain", 7.5)]), None);
        assert_eq!(of("cpu-rows", "other", None, &[("chain", 7.5)]), None);
    }
}
