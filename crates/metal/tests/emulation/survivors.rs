//! The committed list of mutants, `mutants.txt`: how many of each kind there are in each kernel, what
//! found them, and those that nothing found, each with the reason why it does no harm.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::mutate::OPERATORS;

/// What found a mutant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Killer {
    /// A compiler, or the check of address spaces.
    Compiler,
    /// A wrong result or a fault, in the plain build.
    Results,
    /// Address or undefined-behaviour sanitizer.
    Sanitizers,
    /// The race detector.
    Races,
}

/// How many mutants were found by what.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// By a [`Killer`], in its order.
    killed: [usize; 4],
    survived: usize,
}

impl Counts {
    fn add(&mut self, killer: Option<Killer>) {
        match killer {
            Some(killer) => self.killed[killer as usize] += 1,
            None => self.survived += 1,
        }
    }

    fn plus(&mut self, other: &Counts) {
        for (n, more) in self.killed.iter_mut().zip(other.killed) {
            *n += more;
        }
        self.survived += other.survived;
    }

    /// All of them.
    pub fn mutants(&self) -> usize {
        self.killed.iter().sum::<usize>() + self.survived
    }

    /// Reads what [`fmt::Display`] writes.
    fn read(text: &str) -> Option<Counts> {
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty());
        let mut next = || numbers.next()?.parse().ok();
        let _mutants: usize = next()?;
        let killed = [next()?, next()?, next()?, next()?];
        Some(Counts { killed, survived: next()? })
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [compiler, results, sanitizers, races] = self.killed;
        write!(
            f,
            "{} mutants, found by compilers {compiler}, results {results}, sanitizers \
             {sanitizers}, race detector {races}; {} survive",
            self.mutants(),
            self.survived
        )
    }
}

/// A mutant in the list.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Entry {
    pub line: usize,
    pub kind: String,
    /// The line with the fault.
    pub what: String,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.line, self.kind, self.what)
    }
}

impl Entry {
    fn read(text: &str) -> Option<Entry> {
        let (line, rest) = text.split_once(": ")?;
        // The faulty line is gone in some: `12: barrier removed: `, whose blank editors eat.
        let (kind, what) = rest.split_once(':')?;
        Some(Entry {
            line: line.parse().ok()?,
            kind: kind.to_string(),
            what: what.trim_start().to_string(),
        })
    }

    /// The same in texts that number their values, and count their lines, in another way.
    fn shape(&self) -> (String, String) {
        let mut what = String::new();
        let mut number = false;
        for c in self.what.chars() {
            // `v12`, `f3`, `left7`: digits that follow a letter.
            let named = number || what.chars().last().is_some_and(|c| c.is_ascii_alphabetic());
            number = c.is_ascii_digit() && named;
            if !number {
                what.push(c);
            }
        }
        (self.kind.clone(), what)
    }
}

/// What the list says of one kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Section {
    pub name: String,
    /// A hash of the text that was mutated.
    pub text: String,
    kinds: BTreeMap<String, Counts>,
    /// With the reason of each.
    pub survivors: Vec<(Entry, String)>,
}

impl Section {
    pub fn new(name: &str, text: String) -> Section {
        Section { name: name.to_string(), text, kinds: BTreeMap::new(), survivors: Vec::new() }
    }

    pub fn count(&mut self, kind: &str, killer: Option<Killer>) {
        self.kinds.entry(kind.to_string()).or_default().add(killer);
    }

    pub fn total(&self) -> Counts {
        let mut sum = Counts::default();
        self.kinds.values().for_each(|c| sum.plus(c));
        sum
    }
}

/// The committed list.
#[derive(Default)]
pub struct List {
    pub sections: Vec<Section>,
}

/// A short hash of a text.
pub fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(6).map(|b| format!("{b:02x}")).collect()
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emulation/mutants.txt")
}

impl List {
    /// The committed list; an empty one where there is none.
    pub fn read() -> List {
        let text = std::fs::read_to_string(path()).unwrap_or_default();
        let mut list = List::default();
        for (at, line) in text.lines().enumerate() {
            let known = list.take(line);
            assert!(known.is_some(), "mutants.txt, line {}: `{line}` has another form", at + 1);
        }
        list
    }

    /// Takes a line of the list; `None` where it has another form. Sums are made anew.
    fn take(&mut self, line: &str) -> Option<()> {
        if let Some(rest) = line.strip_prefix("kernel ") {
            let (name, hash) = rest.split_once(", text ")?;
            self.sections.push(Section::new(name, hash.to_string()));
            return Some(());
        }
        let (Some(section), Some(rest)) = (self.sections.last_mut(), line.strip_prefix("  "))
        else {
            return Some(());
        };
        if let Some(reason) = rest.strip_prefix("    harmless: ") {
            section.survivors.last_mut()?.1 = reason.to_string();
        } else if let Some(entry) = rest.strip_prefix("survivor ") {
            section.survivors.push((Entry::read(entry)?, "?".to_string()));
        } else {
            let (kind, counts) = rest.split_once(": ")?;
            section.kinds.insert(kind.to_string(), Counts::read(counts)?);
        }
        Some(())
    }

    /// Puts what came out in the place of what the list says of the same kernel.
    pub fn put(&mut self, section: Section) {
        match self.sections.iter_mut().find(|s| s.name == section.name) {
            Some(old) => *old = section,
            None => self.sections.push(section),
        }
        self.sections.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// Writes the committed list.
    pub fn write(&self) {
        std::fs::write(path(), self.to_string()).unwrap();
    }

    /// The reason why a mutant that survives does no harm, if one is known. Of a text that has
    /// changed since the list was made, values' numbers and lines don't count.
    pub fn reason(&self, kernel: &str, text: &str, entry: &Entry) -> Option<&str> {
        let section = self.sections.iter().find(|s| s.name == kernel)?;
        let same = section.text == hash(text);
        let found = section
            .survivors
            .iter()
            .find(|(known, _)| if same { known == entry } else { known.shape() == entry.shape() });
        found.map(|(_, reason)| reason.as_str()).filter(|reason| *reason != "?")
    }

    fn kinds(&self) -> BTreeMap<&str, Counts> {
        let mut kinds: BTreeMap<&str, Counts> = BTreeMap::new();
        for section in &self.sections {
            for (kind, counts) in &section.kinds {
                kinds.entry(kind).or_default().plus(counts);
            }
        }
        kinds
    }

    /// Every survivor has a reason, 95 % of all mutants are killed, of 20 kinds at least, and the
    /// numbers agree with the survivors.
    pub fn judge(&self) {
        let mut all = Counts::default();
        for section in &self.sections {
            for (entry, reason) in &section.survivors {
                assert!(reason != "?", "no reason: {}:{entry}", section.name);
            }
            let total = section.total();
            assert_eq!(total.survived, section.survivors.len(), "{}", section.name);
            all.plus(&total);
        }
        let killed: usize = all.killed.iter().sum();
        assert!(killed > 0 && killed * 100 >= all.mutants() * 95, "{all}");
        let kinds = self.kinds();
        let found = kinds.values().filter(|c| c.killed.iter().any(|n| *n > 0)).count();
        assert!(found >= 20, "{found} kinds of fault are found");
        for kind in kinds.keys() {
            assert!(OPERATORS.iter().any(|(known, _)| known == kind), "no such kind: {kind}");
        }
    }
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::from(
            "Mutants of kernels' texts: what was tried, what found it, and what nothing found.\n\
             Made by the test `every_mutant` with TILEWRIGHT_BLESS=1; reasons are written by \
             hand.\n\n",
        );
        let mut all = Counts::default();
        self.sections.iter().for_each(|s| all.plus(&s.total()));
        writeln!(out, "all: {all}")?;
        for section in &self.sections {
            writeln!(out, "in {}: {}", section.name, section.total())?;
        }
        out.push('\n');
        for (kind, counts) in self.kinds() {
            writeln!(out, "of {kind}: {counts}")?;
        }
        for section in &self.sections {
            writeln!(out, "\nkernel {}, text {}", section.name, section.text)?;
            for (kind, counts) in &section.kinds {
                writeln!(out, "  {kind}: {counts}")?;
            }
            for (entry, reason) in &section.survivors {
                writeln!(out, "  survivor {}", entry.to_string().trim_end())?;
                writeln!(out, "      harmless: {reason}")?;
            }
        }
        f.write_str(&out)
    }
}
