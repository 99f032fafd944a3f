//! Profiles: fitted coefficients as data.
//!
//! A profile is a string (`analytic`, or `service-v1,C,D,R,K,G,Wb,Pb`) or a JSON file:
//!
//! ```json
//! {
//!   "schema": "tilewright-profile-v1",
//!   "policy": "reduction-service",
//!   "target": "apple-m1-max",
//!   "unit": "us",
//!   "capacity": 512,
//!   "coefficients": {
//!     "dispatch": 3.29, "scalar_round": 0.0036, "collective": 0.0034,
//!     "global_program_byte": 1.0e-6, "global_worker_byte": 0.0028, "private_worker_byte": 0
//!   },
//!   "source": "where the fit comes from"
//! }
//! ```
//!
//! The other policies' files differ in what follows `unit`: a `whole-launch` profile has `fits`
//! (`whole_launch`), every other policy's has all of its named `coefficients` (`named`). A fit of
//! ours says where it comes from in `fit`.

mod hold_out;
mod named;
mod whole_launch;

pub use hold_out::{HoldOut, Standing, default_among, shipped_default};
pub use named::NamedProfile;
pub use whole_launch::WholeLaunchProfile;

use serde::{Deserialize, Serialize};

use crate::policy::reduction_service::{self, ServiceCoefficients};
use crate::policy::reduction_v1;

/// The `schema` of a profile file.
pub const SCHEMA: &str = "tilewright-profile-v1";

/// Coefficients for a policy.
#[derive(Clone, PartialEq, Debug)]
pub enum Profile {
    /// The analytic row score, which has no fitted coefficients.
    Analytic,
    /// A fit of the service score.
    Service(ServiceProfile),
    /// Fits of whole-launch times.
    WholeLaunch(WholeLaunchProfile),
    /// Coefficients of another built-in policy, by name.
    Named(NamedProfile),
}

/// Where fitted coefficients come from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FitOrigin {
    /// SHA-256 of the training file.
    pub data_sha256: String,
    /// SHA-256 of the fitting code ([`crate::calibrate::code_hash`]).
    pub code_sha256: String,
    /// The procedure in words.
    pub procedure: String,
}

impl FitOrigin {
    /// Checks that both hashes are 64 hexadecimal digits.
    ///
    /// # Errors
    /// Names the first one that isn't.
    fn check(&self) -> Result<(), ProfileError> {
        let hashes =
            [("fit.data_sha256", &self.data_sha256), ("fit.code_sha256", &self.code_sha256)];
        hashes.into_iter().try_for_each(|(field, value)| check_hash(field, value))
    }
}

/// Checks that a field is 64 hexadecimal digits.
fn check_hash(field: &str, value: &str) -> Result<(), ProfileError> {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if value.len() == 64 && value.bytes().all(hex) {
        return Ok(());
    }
    Err(ProfileError::Field {
        field: field.to_string(),
        value: value.to_string(),
        expected: "64 hexadecimal digits".to_string(),
    })
}

/// A fit of the service score.
#[derive(Clone, PartialEq, Debug)]
pub struct ServiceProfile {
    /// The coefficients.
    pub coefficients: ServiceCoefficients,
    /// The target that it was fitted on, if stated.
    pub target: Option<String>,
    /// Where it comes from, if stated.
    pub source: Option<String>,
    /// Training data and code of the fit, if stated.
    pub fit: Option<FitOrigin>,
}

/// Why a profile can't be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProfileError {
    /// Another number of tokens than 8.
    #[error("a service-v1 profile has 8 comma-separated tokens, not {0}")]
    Tokens(usize),
    /// The string is of no known form.
    #[error("unknown profile `{0}`: use analytic or service-v1,C,D,R,K,G,W,P")]
    Form(String),
    /// The capacity isn't an integer in 1..=2^32−1.
    #[error("profile capacity `{0}` must be an integer from 1 to 4294967295")]
    Capacity(String),
    /// A coefficient isn't a finite, non-negative number.
    #[error("profile coefficient `{name}` is `{value}`: it must be a finite number, not negative")]
    Coefficient {
        /// The coefficient.
        name: String,
        /// What stands there.
        value: String,
    },
    /// The file isn't a profile.
    #[error("not a profile: {0}")]
    Json(String),
    /// The file has another schema, policy or unit.
    #[error("profile field `{field}` is `{value}`: expected `{expected}`")]
    Field {
        /// The field.
        field: String,
        /// Its value.
        value: String,
        /// What it must be.
        expected: String,
    },
    /// The profile is for another policy.
    #[error("the profile is for policy `{profile}`, not `{policy}`")]
    Policy {
        /// Policy of the profile.
        profile: String,
        /// Policy asked for.
        policy: String,
    },
    /// A coefficient that the policy needs isn't there.
    #[error("profile of `{policy}` lacks the coefficient `{name}`")]
    MissingCoefficient {
        /// The policy.
        policy: String,
        /// The coefficient.
        name: String,
    },
    /// A coefficient that the policy doesn't have.
    #[error("profile of `{policy}` has an unknown coefficient `{name}`")]
    UnknownCoefficient {
        /// The policy.
        policy: String,
        /// The coefficient.
        name: String,
    },
    /// A model that can't be used.
    #[error("profile fit of `{family}`: {problem}")]
    Model {
        /// The family.
        family: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A policy without coefficients of its own.
    #[error("policy `{0}` has no built-in coefficients: give it a profile")]
    Needed(String),
    /// The profile was fitted on another target.
    #[error("the profile was fitted on target `{profile}`, not `{target}`")]
    Target {
        /// Target of the profile.
        profile: String,
        /// Target to plan for.
        target: String,
    },
}

/// The JSON form.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFile {
    schema: String,
    policy: String,
    target: String,
    unit: String,
    capacity: u64,
    coefficients: CoefficientsFile,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fit: Option<FitOrigin>,
}

/// What every profile file starts with; the policy says how to read the rest.
#[derive(Deserialize)]
struct Head {
    schema: String,
    policy: String,
    unit: String,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CoefficientsFile {
    dispatch: f64,
    scalar_round: f64,
    collective: f64,
    global_program_byte: f64,
    global_worker_byte: f64,
    private_worker_byte: f64,
}

impl Profile {
    /// Whether a command-line argument is a profile string rather than the path of a file.
    pub fn is_string(argument: &str) -> bool {
        argument == "analytic" || argument.starts_with("service-v1,")
    }

    /// Reads a profile string.
    ///
    /// # Errors
    /// It is neither `analytic` nor 8 tokens of which the first is `service-v1`, the second an
    /// integer in 1..=2^32−1 and the others finite, non-negative numbers.
    pub fn from_string(text: &str) -> Result<Profile, ProfileError> {
        if text == "analytic" {
            return Ok(Profile::Analytic);
        }
        let tokens: Vec<&str> = text.split(',').collect();
        if tokens.first() != Some(&"service-v1") {
            return Err(ProfileError::Form(text.to_string()));
        }
        let [_, capacity, coefficients @ ..] = tokens.as_slice() else {
            return Err(ProfileError::Tokens(tokens.len()));
        };
        let names = ServiceCoefficients::APPLE_M1_MAX.named();
        if coefficients.len() != names.len() {
            return Err(ProfileError::Tokens(tokens.len()));
        }
        let mut values = [0.0; 6];
        for ((value, token), (name, _)) in values.iter_mut().zip(coefficients).zip(names) {
            *value = coefficient(name, token.parse().ok(), token)?;
        }
        // `parse` would also take a plus sign.
        let digits = !capacity.is_empty() && capacity.bytes().all(|b| b.is_ascii_digit());
        let capacity = match capacity.parse::<u32>() {
            Ok(n) if n > 0 && digits => n,
            _ => return Err(ProfileError::Capacity(capacity.to_string())),
        };
        Ok(Profile::Service(ServiceProfile {
            coefficients: with_values(capacity, values),
            target: None,
            source: None,
            fit: None,
        }))
    }

    /// Reads a profile file.
    ///
    /// # Errors
    /// It isn't JSON of the schema, or a number can't be used.
    pub fn from_json(text: &str) -> Result<Profile, ProfileError> {
        let json = |e: serde_json::Error| ProfileError::Json(e.to_string());
        let head: Head = serde_json::from_str(text).map_err(json)?;
        expect("schema", &head.schema, SCHEMA)?;
        match head.policy.as_str() {
            reduction_service::NAME => {}
            crate::policy::whole_launch::NAME => {
                expect("unit", &head.unit, "us")?;
                return WholeLaunchProfile::read(text).map(Profile::WholeLaunch);
            }
            name if crate::policy::NAMES.contains(&name) => {
                return NamedProfile::read(text).map(Profile::Named);
            }
            other => {
                return Err(ProfileError::Field {
                    field: "policy".to_string(),
                    value: other.to_string(),
                    expected: crate::policy::NAMES.join(", "),
                });
            }
        }
        expect("unit", &head.unit, "us")?;
        let file: ProfileFile = serde_json::from_str(text).map_err(json)?;
        if let Some(fit) = &file.fit {
            fit.check()?;
        }
        let capacity = match u32::try_from(file.capacity) {
            Ok(n) if n > 0 => n,
            _ => return Err(ProfileError::Capacity(file.capacity.to_string())),
        };
        let c = &file.coefficients;
        let coefficients = ServiceCoefficients {
            capacity,
            dispatch: c.dispatch,
            scalar_round: c.scalar_round,
            collective: c.collective,
            global_program_byte: c.global_program_byte,
            global_worker_byte: c.global_worker_byte,
            private_worker_byte: c.private_worker_byte,
        };
        for (name, value) in coefficients.named() {
            coefficient(name, Some(value), &value.to_string())?;
        }
        Ok(Profile::Service(ServiceProfile {
            coefficients,
            target: Some(file.target),
            source: file.source,
            fit: file.fit,
        }))
    }

    /// The policy that it is for.
    pub fn policy(&self) -> &'static str {
        match self {
            Profile::Analytic => reduction_v1::NAME,
            Profile::Service(_) => reduction_service::NAME,
            Profile::WholeLaunch(_) => crate::policy::whole_launch::NAME,
            Profile::Named(named) => named.policy(),
        }
    }

    /// Checks that it may be used on a target.
    ///
    /// # Errors
    /// It states another target.
    pub fn check_target(&self, target: &str) -> Result<(), ProfileError> {
        let fitted = match self {
            Profile::Analytic => None,
            Profile::Service(service) => service.target.as_deref(),
            Profile::WholeLaunch(whole) => Some(whole.target.as_str()),
            Profile::Named(named) => Some(named.target.as_str()),
        };
        match fitted {
            Some(fitted) if fitted != target => Err(ProfileError::Target {
                profile: fitted.to_string(),
                target: target.to_string(),
            }),
            _ => Ok(()),
        }
    }
}

impl ServiceProfile {
    /// The profile as a string: 17 digits a number are more than enough to read it back exactly,
    /// so the shortest exact ones are written.
    pub fn to_profile_string(&self) -> String {
        let c = &self.coefficients;
        let numbers: Vec<String> = c.named().iter().map(|(_, value)| value.to_string()).collect();
        format!("service-v1,{},{}", c.capacity, numbers.join(","))
    }

    /// The profile as a JSON file for a target.
    pub fn to_json(&self, target: &str) -> String {
        let c = &self.coefficients;
        let file = ProfileFile {
            schema: SCHEMA.to_string(),
            policy: reduction_service::NAME.to_string(),
            target: target.to_string(),
            unit: "us".to_string(),
            capacity: c.capacity.into(),
            coefficients: CoefficientsFile {
                dispatch: c.dispatch,
                scalar_round: c.scalar_round,
                collective: c.collective,
                global_program_byte: c.global_program_byte,
                global_worker_byte: c.global_worker_byte,
                private_worker_byte: c.private_worker_byte,
            },
            source: self.source.clone(),
            fit: self.fit.clone(),
        };
        // Plain data without maps of odd keys always serialises.
        serde_json::to_string_pretty(&file).unwrap_or_default() + "\n"
    }
}

/// Checks a field of a profile file.
fn expect(field: &str, value: &str, expected: &str) -> Result<(), ProfileError> {
    if value == expected {
        return Ok(());
    }
    Err(ProfileError::Field {
        field: field.to_string(),
        value: value.to_string(),
        expected: expected.to_string(),
    })
}

fn with_values(capacity: u32, values: [f64; 6]) -> ServiceCoefficients {
    let [
        dispatch,
        scalar_round,
        collective,
        global_program_byte,
        global_worker_byte,
        private_worker_byte,
    ] = values;
    ServiceCoefficients {
        capacity,
        dispatch,
        scalar_round,
        collective,
        global_program_byte,
        global_worker_byte,
        private_worker_byte,
    }
}

fn coefficient(name: &str, value: Option<f64>, text: &str) -> Result<f64, ProfileError> {
    match value {
        Some(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err(ProfileError::Coefficient { name: name.to_string(), value: text.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLISHED: &str = "service-v1,512,3.2916011189278369,0.0036317277214723059,\
        0.0034232968457137843,1.0065583053146008e-06,0.0028459431572213007,0";

    #[test]
    fn the_published_string_gives_the_built_in_fit() {
        let profile = Profile::from_string(PUBLISHED).expect("published");
        let Profile::Service(service) = &profile else { panic!("a service profile") };
        assert_eq!(service.coefficients, ServiceCoefficients::APPLE_M1_MAX);
        assert_eq!(Profile::from_string(&service.to_profile_string()), Ok(profile));
    }

    #[test]
    fn a_file_reads_back() {
        let service = ServiceProfile {
            coefficients: ServiceCoefficients::APPLE_M1_MAX,
            target: Some("apple-m1-max".to_string()),
            source: Some("published".to_string()),
            fit: None,
        };
        let text = service.to_json("apple-m1-max");
        let profile = Profile::from_json(&text).expect("own text");
        assert_eq!(profile, Profile::Service(service));
        assert_eq!(profile.check_target("apple-m1-max"), Ok(()));
        assert!(matches!(profile.check_target("nvidia-h200"), Err(ProfileError::Target { .. })));
        assert!(matches!(
            Profile::from_json(&text.replace("profile-v1", "profile-v9")),
            Err(ProfileError::Field { .. })
        ));
        assert!(matches!(
            Profile::from_json(&text.replace("\"capacity\": 512", "\"capacity\": 0")),
            Err(ProfileError::Capacity(_))
        ));
        assert!(matches!(
            Profile::from_json(&text.replace("3.29", "-3.29")),
            Err(ProfileError::Coefficient { .. })
        ));
        let truncated = text.get(..text.len() / 2).unwrap_or_default();
        assert!(matches!(Profile::from_json(truncated), Err(ProfileError::Json(_))));
    }

    #[test]
    fn malformed_strings_are_refused() {
        let bad = |text: &str| Profile::from_string(text).expect_err(text);
        assert_eq!(bad("service-v1,512,1,1,1,1,1"), ProfileError::Tokens(7));
        assert_eq!(bad("service-v1,512,1,1,1,1,1,1,1"), ProfileError::Tokens(9));
        assert!(matches!(bad("service-v2,512,1,1,1,1,1,1"), ProfileError::Form(_)));
        for capacity in ["0", "-1", "4294967296", "1.5", "", "+7"] {
            let text = format!("service-v1,{capacity},1,1,1,1,1,1");
            assert!(matches!(bad(&text), ProfileError::Capacity(_)), "{text}");
        }
        for value in ["nan", "NaN", "inf", "-1", "1,5", "", "x"] {
            let text = format!("service-v1,512,{value},1,1,1,1,1");
            assert!(
                matches!(bad(&text), ProfileError::Coefficient { .. } | ProfileError::Tokens(_)),
                "{text}"
            );
        }
    }
}
