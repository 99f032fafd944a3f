//! Faults that are put into a kernel's text, one at a time, at every place where their kind fits.

use crate::source::without_comments;

/// A text with a fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mutant {
    /// What kind of fault.
    pub kind: &'static str,
    /// Its line, from 1.
    pub line: usize,
    /// The line with the fault, without indentation; empty where the line is gone.
    pub what: String,
    /// The whole text.
    pub text: String,
}

/// Lines that are replaced, by number from 0.
type Edit = Vec<(usize, String)>;

/// A kind of fault: its name, and what it makes of the line at a place.
type Operator = (&'static str, fn(&[&str], usize) -> Vec<Edit>);

/// Edits of the line itself.
fn here(at: usize, lines: Vec<String>) -> Vec<Edit> {
    lines.into_iter().map(|line| vec![(at, line)]).collect()
}

/// Every kind.
pub const OPERATORS: [Operator; 36] = [
    ("barrier removed", |l, at| here(at, drop_if(l[at].contains("threadgroup_barrier(")))),
    ("barrier after the next statement", barrier_later),
    ("barrier before the last statement", barrier_earlier),
    ("barrier of a simdgroup only", |l, at| {
        here(at, each(l[at], "threadgroup_barrier(", "simdgroup_barrier("))
    }),
    ("barrier that orders nothing", |l, at| {
        here(at, each(l[at], "mem_flags::mem_threadgroup", "mem_flags::mem_none"))
    }),
    ("barrier of some simdgroups", |l, at| {
        here(at, each(l[at], "threadgroup_barrier(", "if (subgroup != 0) threadgroup_barrier("))
    }),
    ("wrong stride", |l, at| here(at, numbers(l[at], "* ", |n| n + 1))),
    ("wrong line of a matrix", |l, at| {
        here(at, {
            let places = ["simdgroup_load(", "simdgroup_store(", "array<int, 2>{"];
            if places.iter().any(|p| l[at].contains(p)) {
                numbers(l[at], ", ", |n| n + 1)
            } else {
                vec![]
            }
        })
    }),
    ("off-by-one guard", |l, at| {
        here(at, if is_for(l[at]) { vec![] } else { each(l[at], " < ", " <= ") })
    }),
    ("comparison flipped", |l, at| here(at, each(l[at], " < ", " > "))),
    ("wrong offset", |l, at| here(at, numbers(l[at], "+ ", |n| n + 1))),
    ("offset forgotten", |l, at| here(at, numbers(l[at], "+ ", |_| 0))),
    ("wrong element of a private array", |l, at| {
        here(at, if l[at].contains("] = ") { numbers(l[at], "[", |n| n + 1) } else { vec![] })
    }),
    ("wrong element of a vector", |l, at| here(at, elements(l[at]))),
    ("loop ends early", |l, at| here(at, loops(l[at], |n, step| n - step))),
    ("loop ends late", |l, at| here(at, loops(l[at], |n, step| n + step))),
    ("loop skips", |l, at| {
        here(at, if is_for(l[at]) { numbers(l[at], "+= ", |n| 2 * n) } else { vec![] })
    }),
    ("loop begins late", |l, at| {
        here(at, if is_for(l[at]) { numbers(l[at], " = ", |n| n + 1) } else { vec![] })
    }),
    ("unset accumulator", |l, at| here(at, unset(l[at]))),
    ("wrong identity", |l, at| {
        here(at, {
            let mut out = each(l[at], "(-INFINITY)", "0.0f");
            if l[at].trim_start().starts_with("float v")
                || l[at].contains("make_filled")
                || l[at].contains("[i] = 0.0f")
            {
                out.extend(each(l[at], "0.0f", "1.0f"));
            }
            out
        })
    }),
    ("wrong mode of a tensor operation", |l, at| {
        here(at, each(l[at], "mode::multiply_accumulate", "mode::multiply"))
    }),
    ("static K past the edge", |l, at| {
        here(at, each(l[at], "static_cast<int>(dynamic_extent)", "64"))
    }),
    ("wrong scope of a tensor operation", |l, at| {
        here(at, each(l[at], "execution_simdgroup>", "execution_simdgroups<4>>"))
    }),
    ("wrong extent of a tensor", |l, at| here(at, numbers(l[at], "dextents<int, 2>(", |n| n + 8))),
    ("dropped address space", |l, at| {
        here(at, {
            let mut out = each(l[at], "device ", "");
            out.extend(each(l[at], "threadgroup ", ""));
            out
        })
    }),
    ("wrong lane of a shuffle", |l, at| {
        here(at, {
            let mut out =
                each(l[at], "simd_shuffle_xor(sum, mask)", "simd_shuffle_xor(sum, mask / 2)");
            out.extend(each(l[at], "simd_shuffle_xor(sum, mask)", "simd_shuffle(sum, mask)"));
            out.extend(each(l[at], "mask = 16", "mask = 8"));
            out
        })
    }),
    ("wrong collective", |l, at| {
        here(at, {
            let mut out = each(l[at], "simd_sum(", "simd_max(");
            out.extend(each(l[at], "tw_simd_max(", "simd_sum("));
            out.extend(each(l[at], " simd_max(", " simd_min("));
            out.extend(each(l[at], "simd_any(", "simd_all("));
            out
        })
    }),
    ("swapped operands", |l, at| here(at, swapped(l[at]))),
    ("transposed load", |l, at| {
        here(at, {
            let line = l[at];
            let load = line.trim_start().starts_with("simdgroup_load(") && line.ends_with(");");
            let mut out = if load && !line.contains("ulong2") {
                vec![line.replacen(");", ", ulong2{0, 0}, true);", 1)]
            } else {
                vec![]
            };
            if line.contains("matmul2d_descriptor(") {
                out.extend(each(line, "dynamic_extent), false", "dynamic_extent), true"));
                out.extend(each(line, "false, false, matmul2d", "true, false, matmul2d"));
            }
            out
        })
    }),
    ("wrong axis of the grid", |l, at| {
        here(at, {
            let mut out = each(l[at], "group_id.y", "group_id.x");
            out.extend(each(l[at], "group_id.x", "group_id.y"));
            out
        })
    }),
    ("wrong group", |l, at| {
        let groups = ["group0", "group1"].iter().filter(|_| !l[at].contains("group_id"));
        here(at, groups.flat_map(|g| words(l[at], g, &format!("({g} + 1)"))).collect())
    }),
    ("wrong simdgroup", |l, at| {
        let defined = l[at].contains("subgroup_id");
        here(at, if defined { vec![] } else { words(l[at], "subgroup", "(subgroup + 1)") })
    }),
    ("wrong lane", |l, at| {
        here(at, {
            // Not one that swaps lanes: sums and maxima don't care.
            let from = l[at].find('[').filter(|_| !l[at].contains("[["));
            from.map_or_else(Vec::new, |from| {
                let (head, index) = l[at].split_at(from);
                words(index, "lane", "(lane | 1)")
                    .into_iter()
                    .map(|i| format!("{head}{i}"))
                    .collect()
            })
        })
    }),
    ("store removed", |l, at| here(at, drop_if(is_store(l[at])))),
    ("dropped conversion", |l, at| {
        here(at, {
            let mut out = each(l[at], " bfloat(", " (");
            out.extend(each(l[at], "(float(", "(("));
            out.extend(each(l[at], " float(v", " (v"));
            out
        })
    }),
    ("wrong number or function", |l, at| {
        here(at, {
            let mut out = each(l[at], "precise::exp(", "precise::log(");
            out.extend(each(l[at], "precise::sqrt(", "("));
            out.extend(each(l[at], "1e-5f", "1e-3f"));
            out.extend(each(l[at], "isnan(a) || isnan(b) ? NAN : ", ""));
            out.extend(each(l[at], "simd_any(isnan(x)) ? NAN : ", ""));
            out
        })
    }),
];

/// Every mutant of a text, in the order of lines, then of kinds.
pub fn mutants(text: &str) -> Vec<Mutant> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let code = without_comments(line);
        if code.trim().is_empty() || line.trim_start().starts_with('#') || line.starts_with("using")
        {
            continue;
        }
        for (kind, make) in OPERATORS {
            for edit in make(&lines, at) {
                let mut all: Vec<&str> = lines.clone();
                for (place, line) in &edit {
                    all[*place] = line;
                }
                if all == lines {
                    continue;
                }
                let what: Vec<&str> = edit.iter().map(|(_, line)| line.trim()).collect();
                let text = all.join("\n") + "\n";
                found.push(Mutant { kind, line: at + 1, what: what.join(" "), text });
            }
        }
    }
    found
}

/// An empty line in place of one to be dropped.
fn drop_if(drop: bool) -> Vec<String> {
    if drop { vec![String::new()] } else { vec![] }
}

/// The line with one occurrence replaced, for each occurrence.
fn each(line: &str, from: &str, to: &str) -> Vec<String> {
    line.match_indices(from)
        .map(|(at, _)| format!("{}{to}{}", &line[..at], &line[at + from.len()..]))
        .collect()
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// As [`each`], of whole words, where a value is used.
fn words(line: &str, word: &str, to: &str) -> Vec<String> {
    let declared = format!("const int {word} ");
    line.match_indices(word)
        .filter(|(at, _)| {
            !line[..*at].ends_with(is_word)
                && !line[at + word.len()..].starts_with(is_word)
                && !line.contains(&declared)
        })
        .map(|(at, _)| format!("{}{to}{}", &line[..at], &line[at + word.len()..]))
        .collect()
}

/// The line with a number that follows `before` changed, for each.
fn numbers(line: &str, before: &str, change: fn(i64) -> i64) -> Vec<String> {
    line.match_indices(before)
        .filter_map(|(at, _)| {
            let from = at + before.len();
            let digits: String = line[from..].chars().take_while(char::is_ascii_digit).collect();
            let rest = &line[from + digits.len()..];
            if digits.is_empty() || rest.starts_with(|c: char| is_word(c) || c == '.') {
                return None;
            }
            let n: i64 = digits.parse().ok()?;
            Some(format!("{}{}{rest}", &line[..from], change(n)))
        })
        .collect()
}

/// A vector's element in place of another: `p12.x` is the first of a loaded vector.
fn elements(line: &str) -> Vec<String> {
    let loaded = |name: &str| {
        let digits = name.trim_end_matches(|c: char| c.is_ascii_digit());
        digits.len() < name.len() && digits.ends_with('p')
    };
    [(".x", ".y"), (".y", ".x"), (".z", ".w"), (".w", ".z")]
        .into_iter()
        .flat_map(|(from, to)| {
            let places = line.match_indices(from).filter(|(at, _)| loaded(&line[..*at]));
            let put = |at: usize| format!("{}{to}{}", &line[..at], &line[at + 2..]);
            places.map(|(at, _)| put(at)).collect::<Vec<_>>()
        })
        .collect()
}

fn is_for(line: &str) -> bool {
    line.trim_start().starts_with("for (")
}

/// A loop with another bound: from the bound and the step.
fn loops(line: &str, change: fn(i64, i64) -> i64) -> Vec<String> {
    let number = |after: &str| -> Option<(usize, String)> {
        let at = line.find(after)? + after.len();
        let digits: String = line[at..].chars().take_while(char::is_ascii_digit).collect();
        if digits.is_empty() { None } else { Some((at, digits)) }
    };
    let (true, Some((at, bound))) = (is_for(line), number(" < ")) else { return vec![] };
    let step: i64 = number("+= ").and_then(|(_, s)| s.parse().ok()).unwrap_or(1);
    let bound_is: i64 = bound.parse().unwrap_or(0);
    vec![format!("{}{}{}", &line[..at], change(bound_is, step), &line[at + bound.len()..])]
}

fn barrier_later(lines: &[&str], at: usize) -> Vec<Edit> {
    match lines.get(at + 1) {
        Some(next) if lines[at].contains("threadgroup_barrier(") && next.ends_with(';') => {
            vec![vec![(at, next.to_string()), (at + 1, lines[at].to_string())]]
        }
        _ => vec![],
    }
}

fn barrier_earlier(lines: &[&str], at: usize) -> Vec<Edit> {
    match at.checked_sub(1).map(|before| lines[before]) {
        Some(last) if lines[at].contains("threadgroup_barrier(") && last.ends_with(';') => {
            vec![vec![(at - 1, lines[at].to_string()), (at, last.to_string())]]
        }
        _ => vec![],
    }
}

/// A declaration without its first value.
fn unset(line: &str) -> Vec<String> {
    let trimmed = line.trim_start();
    let accumulates = trimmed.starts_with("float v") || trimmed.starts_with("simdgroup_float8x8 f");
    match (accumulates, line.find(" = ")) {
        (true, Some(end)) => vec![format!("{};", &line[..end])],
        _ if trimmed.contains("is_valid_element(i)") && trimmed.ends_with("[i] = 0.0f;") => {
            vec![String::new()]
        }
        _ => vec![],
    }
}

fn is_store(line: &str) -> bool {
    let trimmed = line.trim_start();
    let assigns = line.find("] = ").is_some_and(|at| {
        let head = &line[..at];
        !head.contains("const ") && !head.contains("float ")
    });
    line.ends_with(';')
        && (assigns || trimmed.starts_with("simdgroup_store(") || trimmed.contains(".store("))
}

/// Operands of what doesn't commute.
fn swapped(line: &str) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(from) = line.find("simdgroup_multiply_accumulate(") {
        let open = from + "simdgroup_multiply_accumulate(".len();
        let parts: Vec<&str> = line[open..].trim_end_matches(");").split(", ").collect();
        if let [d, a, b, c] = parts.as_slice() {
            out.push(format!("{}{d}, {b}, {a}, {c});", &line[..open]));
        }
    }
    out.extend(each(line, ".run(left, right,", ".run(right, left,"));
    // `v84 - v81`, `v150 / v134`: names on both sides.
    for sign in [" - ", " / "] {
        for (at, _) in line.match_indices(sign) {
            let left: String =
                line[..at].chars().rev().take_while(|c| is_word(*c)).collect::<String>();
            let left: String = left.chars().rev().collect();
            let after = &line[at + 3..];
            let right: String = after.chars().take_while(|c| is_word(*c)).collect();
            let names = left.starts_with('v') && right.starts_with('v');
            if names && !is_for(line) && line.contains("float") || (names && line.contains("] = "))
            {
                let from = at - left.len();
                out.push(format!(
                    "{}{right}{sign}{left}{}",
                    &line[..from],
                    &line[at + 3 + right.len()..]
                ));
            }
        }
    }
    out
}
