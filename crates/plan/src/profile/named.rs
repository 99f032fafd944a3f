//! Profiles of the policies whose coefficients are a flat list of names: every one of them must be
//! stated, so that no default slips in unseen.
//!
//! ```json
//! { "schema": "tilewright-profile-v1", "policy": "reduction-v1", "target": "apple-m1-max",
//!   "unit": "relative-work",
//!   "coefficients": { "round": 1, "collective": 2, "setup": 16, "global_byte": 0,
//!                     "private_byte": 0, "concurrent_programs": 64 } }
//! ```

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::{FitOrigin, ProfileError, SCHEMA, coefficient, expect};
use crate::matrix::MatrixFeatures;
use crate::policy::matrix_mpp_v2::MppCoefficients;
use crate::policy::{self, Policy, Unit};

/// Coefficients of a built-in policy.
#[derive(Clone, PartialEq, Debug)]
pub struct NamedProfile {
    policy: &'static str,
    /// The target that it is for.
    pub target: String,
    /// Where it comes from, if stated.
    pub source: Option<String>,
    /// Training data and code of the fit, if stated.
    pub fit: Option<FitOrigin>,
    coefficients: BTreeMap<String, f64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: String,
    policy: String,
    target: String,
    unit: String,
    coefficients: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fit: Option<FitOrigin>,
}

/// Every policy of this kind, with its coefficients within reach.
enum Any {
    Simdgroup(policy::matrix_simdgroup_v1::MatrixSimdgroupV1),
    MppV1(policy::matrix_mpp_v1::MatrixMppV1),
    MppV2(policy::matrix_mpp_v2::MatrixMppV2),
    MppV3(policy::matrix_mpp_v3::MatrixMppV3),
    Rows(policy::reduction_v1::ReductionV1),
    Cpu(policy::cpu::Cpu),
}

impl Any {
    fn by_name(name: &str) -> Option<(&'static str, Any)> {
        Some(match name {
            policy::matrix_simdgroup_v1::NAME => {
                (policy::matrix_simdgroup_v1::NAME, Any::Simdgroup(Default::default()))
            }
            policy::matrix_mpp_v1::NAME => {
                (policy::matrix_mpp_v1::NAME, Any::MppV1(Default::default()))
            }
            policy::matrix_mpp_v2::NAME => {
                (policy::matrix_mpp_v2::NAME, Any::MppV2(Default::default()))
            }
            policy::matrix_mpp_v3::NAME => {
                (policy::matrix_mpp_v3::NAME, Any::MppV3(Default::default()))
            }
            policy::reduction_v1::NAME => {
                (policy::reduction_v1::NAME, Any::Rows(Default::default()))
            }
            policy::cpu::NAME => (policy::cpu::NAME, Any::Cpu(Default::default())),
            _ => return None,
        })
    }

    fn boxed(self) -> Box<dyn Policy> {
        match self {
            Any::Simdgroup(p) => Box::new(p),
            Any::MppV1(p) => Box::new(p),
            Any::MppV2(p) => Box::new(p),
            Any::MppV3(p) => Box::new(p),
            Any::Rows(p) => Box::new(p),
            Any::Cpu(p) => Box::new(p),
        }
    }

    fn unit(&self) -> Unit {
        match self {
            Any::Simdgroup(p) => p.unit(),
            Any::MppV1(p) => p.unit(),
            Any::MppV2(p) => p.unit(),
            Any::MppV3(p) => p.unit(),
            Any::Rows(p) => p.unit(),
            Any::Cpu(p) => p.unit(),
        }
    }

    fn slots(&mut self) -> Vec<(&'static str, &mut f64)> {
        match self {
            Any::Simdgroup(p) => vec![
                ("matrix_issue", &mut p.matrix_issue),
                ("shared_fragment_transfer", &mut p.shared_fragment_transfer),
                ("independent_element", &mut p.independent_element),
                ("subgroup_setup", &mut p.subgroup_setup),
                ("preferred_subgroups", &mut p.preferred_subgroups),
                ("preferred_fragment_scalars", &mut p.preferred_fragment_scalars),
                ("preferred_programs", &mut p.preferred_programs),
            ],
            Any::MppV1(p) => {
                let mut slots = mpp(&mut p.prices);
                slots.push(("independent_element", &mut p.independent_element));
                slots.push(("subgroup_setup", &mut p.subgroup_setup));
                slots.push(("preferred_programs", &mut p.preferred_programs));
                slots
            }
            Any::MppV2(p) => v2(p),
            Any::MppV3(p) => v2(&mut p.base),
            Any::Rows(p) => vec![
                ("round", &mut p.round),
                ("collective", &mut p.collective),
                ("setup", &mut p.setup),
                ("global_byte", &mut p.global_byte),
                ("private_byte", &mut p.private_byte),
                ("concurrent_programs", &mut p.concurrent_programs),
            ],
            Any::Cpu(p) => {
                let c = &mut p.coefficients;
                vec![
                    ("launch", &mut c.launch),
                    ("launch_threads", &mut c.launch_threads),
                    ("group", &mut c.group),
                    ("loop_start", &mut c.loop_start),
                    ("loop_step", &mut c.loop_step),
                    ("fma_latency", &mut c.fma_latency),
                    ("collective", &mut c.collective),
                    ("unhidden", &mut c.unhidden),
                    ("l1_bytes_per_cycle", &mut c.l1_bytes_per_cycle),
                    ("l2_bytes_per_cycle", &mut c.l2_bytes_per_cycle),
                    ("l3_bytes_per_cycle", &mut c.l3_bytes_per_cycle),
                    ("memory_bytes_per_cycle", &mut c.memory_bytes_per_cycle),
                ]
            }
        }
    }
}

fn mpp(prices: &mut MppCoefficients) -> Vec<(&'static str, &mut f64)> {
    let names = MatrixFeatures::default().named();
    let features = names.iter().map(|(name, _)| *name).zip(prices.features.iter_mut());
    let mut slots: Vec<(&'static str, &mut f64)> = features.collect();
    slots.push(("preferred_fragment_scalars", &mut prices.preferred_fragment_scalars));
    slots
}

fn v2(p: &mut policy::matrix_mpp_v2::MatrixMppV2) -> Vec<(&'static str, &mut f64)> {
    let mut slots = mpp(&mut p.prices);
    slots.push(("independent_element", &mut p.independent_element));
    slots.push(("setup", &mut p.setup));
    slots.push(("concurrent_subgroups", &mut p.concurrent_subgroups));
    slots
}

impl NamedProfile {
    /// The coefficients that a policy has built in, as a profile for a target. `None` for a
    /// policy whose profiles have another form.
    pub fn built_in(policy: &str, target: &str) -> Option<NamedProfile> {
        let (policy, mut any) = Any::by_name(policy)?;
        let slots = any.slots();
        Some(NamedProfile {
            policy,
            target: target.to_string(),
            source: None,
            fit: None,
            coefficients: slots.into_iter().map(|(name, v)| (name.to_string(), *v)).collect(),
        })
    }

    /// The policy that it is for.
    pub fn policy(&self) -> &'static str {
        self.policy
    }

    /// The coefficients by name.
    pub fn coefficients(&self) -> &BTreeMap<String, f64> {
        &self.coefficients
    }

    /// The policy with these coefficients.
    ///
    /// # Errors
    /// A coefficient is missing, unknown, negative or not finite.
    pub fn load(&self) -> Result<Box<dyn Policy>, ProfileError> {
        let Some((_, mut any)) = Any::by_name(self.policy) else {
            return Err(ProfileError::Form(self.policy.to_string()));
        };
        let policy = || self.policy.to_string();
        let mut known = Vec::new();
        for (name, slot) in any.slots() {
            let Some(value) = self.coefficients.get(name) else {
                let name = name.to_string();
                return Err(ProfileError::MissingCoefficient { policy: policy(), name });
            };
            *slot = coefficient(name, Some(*value), &value.to_string())?;
            known.push(name);
        }
        match self.coefficients.keys().find(|name| !known.contains(&name.as_str())) {
            Some(name) => {
                Err(ProfileError::UnknownCoefficient { policy: policy(), name: name.clone() })
            }
            None => Ok(any.boxed()),
        }
    }

    /// Reads the file; its schema is checked already.
    pub(super) fn read(text: &str) -> Result<Self, ProfileError> {
        let file: File =
            serde_json::from_str(text).map_err(|e| ProfileError::Json(e.to_string()))?;
        let Some((policy, any)) = Any::by_name(&file.policy) else {
            return Err(ProfileError::Form(file.policy));
        };
        expect("unit", &file.unit, any.unit().name())?;
        if let Some(fit) = &file.fit {
            fit.check()?;
        }
        let profile = NamedProfile {
            policy,
            target: file.target,
            source: file.source,
            fit: file.fit,
            coefficients: file.coefficients,
        };
        profile.load()?;
        Ok(profile)
    }

    /// The profile as a JSON file.
    pub fn to_json(&self) -> String {
        let unit = Any::by_name(self.policy).map_or(Unit::RelativeWork, |(_, any)| any.unit());
        let file = File {
            schema: SCHEMA.to_string(),
            policy: self.policy.to_string(),
            target: self.target.clone(),
            unit: unit.name().to_string(),
            coefficients: self.coefficients.clone(),
            source: self.source.clone(),
            fit: self.fit.clone(),
        };
        // Plain data with text keys always serialises.
        serde_json::to_string_pretty(&file).unwrap_or_default() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;

    #[test]
    fn every_built_in_list_reads_back_and_gives_the_same_policy() {
        for name in policy::NAMES {
            let Some(own) = NamedProfile::built_in(name, "apple-m1-max") else {
                assert!(
                    [
                        policy::reduction_service::NAME,
                        policy::whole_launch::NAME,
                        policy::gpu::NAME
                    ]
                    .contains(&name)
                );
                continue;
            };
            let read = Profile::from_json(&own.to_json()).unwrap();
            let loaded = policy::by_name(name, Some(&read)).unwrap();
            let default = policy::by_name(name, None).unwrap();
            assert_eq!(loaded.parameters(), default.parameters(), "{name}");
        }
    }

    #[test]
    fn a_changed_coefficient_reaches_the_policy() {
        let own = NamedProfile::built_in("reduction-v1", "apple-m1-max").unwrap();
        let text = own.to_json().replace("\"setup\": 16.0", "\"setup\": 17.0");
        let loaded = policy::by_name("reduction-v1", Some(&Profile::from_json(&text).unwrap()));
        let default = policy::by_name("reduction-v1", None).unwrap();
        assert_ne!(loaded.unwrap().parameters(), default.parameters());
    }

    #[test]
    fn faults_are_named() {
        let text = NamedProfile::built_in("matrix-mpp-v2", "apple-m1-max").unwrap().to_json();
        let fault = |from: &str, to: &str| {
            assert!(text.contains(from), "{from} in {text}");
            Profile::from_json(&text.replacen(from, to, 1)).unwrap_err()
        };
        assert!(matches!(fault("relative-work", "us"), ProfileError::Field { .. }));
        assert!(matches!(
            fault("matrix_issues", "issues"),
            ProfileError::MissingCoefficient { .. }
        ));
        assert!(matches!(
            fault("\"setup\": 8.0", "\"setup\": 8.0, \"more\": 1"),
            ProfileError::UnknownCoefficient { .. }
        ));
        assert!(matches!(
            fault("\"setup\": 8.0", "\"setup\": -8.0"),
            ProfileError::Coefficient { .. }
        ));
    }
}
