//! Rules by which a device refuses a kernel: before it is compiled, and by what the compiled
//! pipeline tells. A refused plan is recorded and the next in rank is tried.

use super::facts::DeviceFacts;
use crate::codegen::{EmitError, Feature, Module, Options, emit};
use tilewright_kernel::kernel::Kernel;
use tilewright_runtime::{Failure, RuntimeError, Stage};

/// What a compiled pipeline tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PipelineFacts {
    /// Most threads of a threadgroup with this kernel: fewer than the device's where a thread
    /// needs many registers.
    pub max_threads: u64,
    /// Threads of a simdgroup.
    pub lanes: u64,
    /// Threadgroup memory that the kernel declares, in bytes.
    pub threadgroup_bytes: u64,
}

/// Checks that the device and its system have what a module's text uses.
///
/// # Errors
/// [`RuntimeError::Unsupported`] by rule `metal-language`, `metal-family` or
/// `threadgroup-memory`.
pub fn admit(kernel: &str, module: &Module, facts: &DeviceFacts) -> Result<(), RuntimeError> {
    let newest = facts.newest_language();
    if module.language > newest {
        return Err(refused(
            kernel,
            "metal-language",
            format!(
                "it needs MSL {}; macOS {} has {newest}: update macOS",
                module.language,
                facts.os_text()
            ),
        ));
    }
    for feature in &module.features {
        if !facts.has(*feature) {
            let needs = match feature {
                Feature::SimdgroupMatrix => "8x8 fragments, which family Apple7 (M1) has",
                Feature::Bfloat => "bf16, which family Metal3 has with macOS 14",
                Feature::TensorOperations => {
                    "tensor operations, which family Metal4 has with macOS 26"
                }
            };
            let detail =
                format!("it needs {needs}; this is {} with macOS {}", facts.name, facts.os_text());
            return Err(refused(kernel, "metal-family", detail));
        }
    }
    if module.threadgroup_bytes > facts.threadgroup_bytes {
        let detail = format!(
            "it needs {} bytes of threadgroup memory; {} has {}",
            module.threadgroup_bytes, facts.name, facts.threadgroup_bytes
        );
        return Err(refused(kernel, "threadgroup-memory", detail));
    }
    Ok(())
}

/// Checks that a compiled pipeline can run the launch that the plan wants.
///
/// # Errors
/// [`RuntimeError::Unsupported`] by rule `pipeline-threads`, `simd-width` or
/// `threadgroup-memory`.
pub fn admit_pipeline(
    kernel: &str,
    module: &Module,
    pipeline: &PipelineFacts,
    facts: &DeviceFacts,
) -> Result<(), RuntimeError> {
    if u64::from(module.threads) > pipeline.max_threads {
        let detail = format!(
            "the plan has {} threads per threadgroup; the compiled pipeline allows {}, as its \
             registers permit",
            module.threads, pipeline.max_threads
        );
        return Err(refused(kernel, "pipeline-threads", detail));
    }
    if pipeline.lanes != u64::from(facts.lanes) {
        let detail = format!(
            "the compiled pipeline has simdgroups of {} threads; the plan was made for {}",
            pipeline.lanes, facts.lanes
        );
        return Err(refused(kernel, "simd-width", detail));
    }
    if pipeline.threadgroup_bytes > facts.threadgroup_bytes {
        let detail = format!(
            "the compiled pipeline has {} bytes of threadgroup memory; {} has {}",
            pipeline.threadgroup_bytes, facts.name, facts.threadgroup_bytes
        );
        return Err(refused(kernel, "threadgroup-memory", detail));
    }
    Ok(())
}

/// The module of a kernel, if the device and its system take it.
///
/// # Errors
/// [`RuntimeError::Unsupported`] by rule `msl-codegen` where the kernel has no MSL form, or as
/// [`admit`].
pub fn generate(kernel: &Kernel, facts: &DeviceFacts) -> Result<Module, RuntimeError> {
    let options = Options { newest: facts.newest_language() };
    let module = emit(kernel, &options)
        .map_err(|error: EmitError| refused(&kernel.name, "msl-codegen", error.to_string()))?;
    admit(&kernel.name, &module, facts)?;
    Ok(module)
}

fn refused(kernel: &str, rule: &str, detail: String) -> RuntimeError {
    let (op, plan) = (kernel.to_string(), String::new());
    let failure = Failure { op, plan, stage: Stage::Compile, detail };
    RuntimeError::Unsupported { rule: rule.to_string(), failure }
}

#[cfg(test)]
mod tests {
    use super::super::facts::m1_max;
    use super::*;
    use crate::codegen::Language;

    fn module() -> Module {
        Module {
            text: String::new(),
            entry: "k".to_string(),
            bindings: Vec::new(),
            threads: 256,
            threadgroup_bytes: 1024,
            grid: Vec::new(),
            language: Language::BASE,
            features: Vec::new(),
        }
    }

    fn rule(outcome: Result<(), RuntimeError>) -> (String, String) {
        match outcome {
            Err(error @ RuntimeError::Unsupported { .. }) => {
                let text = error.to_string();
                let RuntimeError::Unsupported { rule, .. } = error else { unreachable!() };
                (rule, text)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_text_must_suit_the_system_and_the_gpu() {
        let facts = m1_max([15, 0, 0]);
        assert!(admit("k", &module(), &facts).is_ok());
        let newer = Module { language: Language::TENSORS, ..module() };
        let (name, text) = rule(admit("k", &newer, &facts));
        assert_eq!(name, "metal-language");
        assert!(text.contains("it needs MSL 4.0; macOS 15.0 has 3.2: update macOS"), "{text}");
        let bf16 = Module { features: vec![Feature::Bfloat], ..module() };
        assert!(admit("k", &bf16, &facts).is_ok());
        let (name, text) = rule(admit("k", &bf16, &m1_max([13, 0, 0])));
        assert_eq!(name, "metal-family");
        assert!(text.contains("bf16") && text.contains("macOS 13.0"), "{text}");
    }

    #[test]
    fn a_kernel_without_msl_form_is_refused_by_rule() {
        let mut b = tilewright_kernel::builder::KernelBuilder::new("nothing", 16, 1);
        b.grid(tilewright_kernel::kernel::Size::Const(1), 1);
        let (name, text) = rule(generate(&b.finish(), &m1_max([15, 0, 0])).map(|_| ()));
        assert_eq!(name, "msl-codegen");
        assert!(text.contains("16 lanes"), "{text}");
    }

    #[test]
    fn threadgroup_memory_is_counted_before_and_after() {
        let facts = m1_max([15, 0, 0]);
        let most = Module { threadgroup_bytes: 32768, ..module() };
        assert!(admit("k", &most, &facts).is_ok());
        let more = Module { threadgroup_bytes: 32772, ..module() };
        assert_eq!(rule(admit("k", &more, &facts)).0, "threadgroup-memory");
        let told = PipelineFacts { max_threads: 1024, lanes: 32, threadgroup_bytes: 32768 };
        assert!(admit_pipeline("k", &most, &told, &facts).is_ok());
        let told = PipelineFacts { threadgroup_bytes: 32784, ..told };
        assert_eq!(rule(admit_pipeline("k", &most, &told, &facts)).0, "threadgroup-memory");
    }

    #[test]
    fn a_pipeline_with_fewer_threads_rejects_the_plan_by_name() {
        let facts = m1_max([15, 0, 0]);
        let told = PipelineFacts { max_threads: 256, lanes: 32, threadgroup_bytes: 0 };
        assert!(admit_pipeline("k", &module(), &told, &facts).is_ok());
        let told = PipelineFacts { max_threads: 224, ..told };
        let (name, text) = rule(admit_pipeline("k", &module(), &told, &facts));
        assert_eq!(name, "pipeline-threads");
        assert!(text.contains("256 threads") && text.contains("allows 224"), "{text}");
        let told = PipelineFacts { max_threads: 1024, lanes: 16, threadgroup_bytes: 0 };
        assert_eq!(rule(admit_pipeline("k", &module(), &told, &facts)).0, "simd-width");
    }
}
