//! What a fresh hold-out says of a profile, and whether the profile may be a default.

use serde::{Deserialize, Serialize};

use super::{Profile, ProfileError};
use crate::target::Target;

/// What a study found on cases that its profile had never seen.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldOut {
    /// Hash of the ledger's freeze entry: profile and plans were fixed there.
    pub freeze: String,
    /// SHA-256 of the facts of the machine that it was measured on.
    pub target_sha256: String,
    /// Rounds in which both plans were measured.
    pub rounds: u64,
    /// Cases.
    pub cases: u64,
    /// Cases in which the profile's plan was slower than the incumbent's in every round.
    pub lost_every_round: Vec<String>,
}

/// Whether a profile is used where none is asked for, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Whether it may be a default on the target; it is opt-in otherwise.
    pub default: bool,
    /// Why, in one clause.
    pub reason: String,
}

impl std::fmt::Display for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = if self.default { "default" } else { "opt-in" };
        write!(f, "{word}: {}", self.reason)
    }
}

impl HoldOut {
    /// Checks the hashes.
    ///
    /// # Errors
    /// One of them isn't 64 hexadecimal digits.
    pub(super) fn check(&self) -> Result<(), ProfileError> {
        super::check_hash("hold_out.freeze", &self.freeze)?;
        super::check_hash("hold_out.target_sha256", &self.target_sha256)
    }

    fn standing(&self, target: &Target) -> Standing {
        let HoldOut { rounds, cases, lost_every_round: lost, .. } = self;
        let opt_in = |reason: String| Standing { default: false, reason };
        if *cases == 0 || *rounds == 0 {
            return opt_in("its hold-out has no case".to_string());
        }
        if self.target_sha256 != target.hash().to_string() {
            return opt_in("it was held out on a machine of other facts".to_string());
        }
        match lost.first() {
            Some(first) => opt_in(format!(
                "its plan lost every one of {rounds} rounds in {} of {cases} held-out cases \
                 (first {first})",
                lost.len()
            )),
            None => Standing {
                default: true,
                reason: format!(
                    "its plan lost every one of {rounds} rounds in none of {cases} held-out cases"
                ),
            },
        }
    }
}

impl Profile {
    /// Whether it may be a default on a target: only if it states a fresh hold-out on that target
    /// in which no case lost every pair.
    pub fn standing(&self, target: &Target) -> Standing {
        let hold_out = match self {
            Profile::WholeLaunch(whole) => whole.hold_out.as_ref(),
            Profile::Analytic | Profile::Service(_) | Profile::Named(_) => None,
        };
        match hold_out {
            Some(hold_out) => hold_out.standing(target),
            None => Standing { default: false, reason: "it states no hold-out".to_string() },
        }
    }
}

/// The calibrations that come with Tilewright.
const SHIPPED: [&str; 3] = [
    include_str!("../../../../profiles/apple-m1-max.reduction-service.json"),
    include_str!("../../../../profiles/apple-m1-max.whole-launch-matrix.json"),
    include_str!("../../../../profiles/apple-m1-max.whole-launch-rows.json"),
];

/// The first of some profiles that is a default on a target for rows or products.
pub fn default_among(
    profiles: impl IntoIterator<Item = Profile>,
    target: &Target,
    rows: bool,
) -> Option<Profile> {
    let fits = |profile: &Profile| match profile {
        Profile::WholeLaunch(whole) => {
            // A family's name ends with what it is of.
            whole.fits.iter().any(|fit| fit.model.family().name().ends_with("-rows") == rows)
        }
        Profile::Analytic | Profile::Service(_) | Profile::Named(_) => false,
    };
    profiles
        .into_iter()
        .find(|p| p.check_target(&target.name).is_ok() && fits(p) && p.standing(target).default)
}

/// The shipped profile that is a default on a target, if one is. None is without a fresh hold-out
/// that it passed.
pub fn shipped_default(target: &Target, rows: bool) -> Option<Profile> {
    // A test reads every shipped file.
    default_among(SHIPPED.iter().filter_map(|text| Profile::from_json(text).ok()), target, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::CpuIsa;
    use crate::policy::whole_launch::{Confidence, Family, FamilyFit, Model, WeightedTerm};
    use crate::profile::{FitOrigin, WholeLaunchProfile};
    use crate::target::CpuFacts;

    #[test]
    fn shipped_files_are_profiles_and_opt_in_without_a_hold_out() {
        for text in SHIPPED {
            let profile = Profile::from_json(text).unwrap();
            let target = Target::by_name("apple-m1-max").unwrap();
            assert_eq!(profile.check_target(&target.name), Ok(()));
            assert_eq!(profile.standing(&target).to_string(), "opt-in: it states no hold-out");
            assert_eq!(shipped_default(&target, true), None);
        }
    }

    #[test]
    fn a_default_is_of_the_target_and_the_family() {
        let target = Target::cpu(CpuFacts::modest(CpuIsa::Avx2, 2));
        let profile = |lost: &[&str]| {
            let launch = WeightedTerm { term: 0, capacity: None, coefficient: 3.0 };
            Profile::WholeLaunch(WholeLaunchProfile {
                target: "cpu".to_string(),
                fits: vec![FamilyFit {
                    model: Model::new(Family::CpuRows, vec![launch]).unwrap(),
                    confidence: Confidence {
                        level: 0.9,
                        low: 0.8,
                        high: 1.2,
                        slack: 1.1,
                        margin: 1.2,
                        ranges: vec![[1.0, 2.0]; Family::CpuRows.inputs().len()],
                        rows: 1,
                        cases: 1,
                        shapes: 1,
                    },
                }],
                source: None,
                fit: FitOrigin {
                    data_sha256: "0".repeat(64),
                    code_sha256: "0".repeat(64),
                    procedure: "test".to_string(),
                },
                hold_out: Some(HoldOut {
                    freeze: "0".repeat(64),
                    target_sha256: target.hash().to_string(),
                    rounds: 14,
                    cases: 3,
                    lost_every_round: lost.iter().map(|s| s.to_string()).collect(),
                }),
            })
        };
        let (loser, good) = (profile(&["softmax-f32-3x7"]), profile(&[]));
        let both = || [loser.clone(), good.clone()];
        assert_eq!(default_among(both(), &target, true), Some(good.clone()));
        assert_eq!(default_among([loser.clone()], &target, true), None);
        // It has no fit of products, and is of no GPU.
        assert_eq!(default_among(both(), &target, false), None);
        let gpu = Target::by_name("nvidia-h200").unwrap();
        assert_eq!(default_among(both(), &gpu, true), None);
    }

    #[test]
    fn a_default_lost_no_held_out_case_in_every_round() {
        let target = Target::cpu(CpuFacts::modest(CpuIsa::Avx2, 2));
        let good = HoldOut {
            freeze: "0".repeat(64),
            target_sha256: target.hash().to_string(),
            rounds: 14,
            cases: 24,
            lost_every_round: vec![],
        };
        assert!(good.standing(&target).default);
        let one = HoldOut { lost_every_round: vec!["softmax-f32-3x7".to_string()], ..good.clone() };
        let text = one.standing(&target).to_string();
        assert_eq!(
            text,
            "opt-in: its plan lost every one of 14 rounds in 1 of 24 held-out cases (first \
             softmax-f32-3x7)"
        );
        assert!(!HoldOut { cases: 0, ..good.clone() }.standing(&target).default);
        let other = Target::cpu(CpuFacts::modest(CpuIsa::Avx2, 4));
        assert!(good.standing(&other).reason.contains("other facts"));
        assert!(!Profile::Analytic.standing(&target).default);
    }

    #[test]
    fn hashes_are_checked() {
        let mut bad = HoldOut {
            freeze: "0".repeat(64),
            target_sha256: "0".repeat(64),
            rounds: 1,
            cases: 1,
            lost_every_round: vec![],
        };
        assert!(bad.check().is_ok());
        bad.freeze = "x".to_string();
        assert!(matches!(bad.check(), Err(ProfileError::Field { .. })));
    }
}
