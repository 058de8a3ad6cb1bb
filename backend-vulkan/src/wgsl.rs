//! Translates WGSL for a device.

use crate::shader::{Interface, Shader};
use naga::back::spv;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, EntryPoint, GlobalVariable, Module, ShaderStage};
use std::ffi::CString;

/// The largest alignment of a group's variables.
const SHARED_ALIGNMENT_BYTES: u64 = 16;

/// With more bytes of immediates, Naga's validator panics.
const MOST_IMMEDIATE_BYTES: u32 = 256;

/// Translates WGSL. An index out of bounds is replaced by an index in bounds.
///
/// # Errors
/// The error in the source, with its place.
pub(crate) fn translate(wgsl: &str, entry: &str) -> Result<Shader, String> {
    let wrong = |text: String| format!("{entry}: {text}");
    let module = naga::front::wgsl::parse_str(wgsl);
    let module = module.map_err(|error| wrong(error.emit_to_string(wgsl)))?;
    check_immediates(&module).map_err(wrong)?;
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::IMMEDIATES);
    let info = validator.validate(&module);
    let info = info.map_err(|error| wrong(error.emit_to_string(wgsl)))?;
    let interface = interface(&module, &info, entry).map_err(wrong)?;
    let policy = BoundsCheckPolicy::Restrict;
    let options = spv::Options {
        lang_version: (1, 3),
        // All capabilities with which a device is opened.
        capabilities: Some(
            [spv::Capability::Shader, spv::Capability::Matrix].into_iter().collect(),
        ),
        bounds_check_policies: BoundsCheckPolicies {
            index: policy,
            buffer: policy,
            image_load: policy,
            binding_array: policy,
        },
        ..spv::Options::default()
    };
    let point =
        spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: entry.to_owned() };
    let spirv = spv::write_vec(&module, &info, &options, Some(&point));
    let spirv = spirv.map_err(|error| wrong(error.to_string()))?;
    let name = CString::new(entry).map_err(|error| wrong(error.to_string()))?;
    Ok(Shader { spirv, name, interface })
}

/// Fails for immediates that cannot be translated.
fn check_immediates(module: &Module) -> Result<(), String> {
    let of_immediates = |global: &GlobalVariable| global.space == AddressSpace::Immediate;
    let mut globals = module.global_variables.iter().map(|(_, global)| global);
    let fits = |global: &GlobalVariable| {
        let bytes = module.types[global.ty].inner.try_size(module.to_ctx());
        bytes.is_some_and(|bytes| bytes <= MOST_IMMEDIATE_BYTES)
    };
    if globals.all(|global| !of_immediates(global) || fits(global)) {
        return Ok(());
    }
    Err(format!("its immediates have more than {MOST_IMMEDIATE_BYTES} bytes"))
}

/// The operands and needs of an entry point.
fn interface(module: &Module, info: &ModuleInfo, entry: &str) -> Result<Interface, String> {
    let is_entry = |point: &EntryPoint| point.name == entry && point.stage == ShaderStage::Compute;
    let index = module.entry_points.iter().position(is_entry);
    let index = index.ok_or("there is no such compute entry point")?;
    let uses = info.get_entry_point(index);
    let (mut bindings, mut immediates, mut shared_bytes) = (Vec::new(), 0, 0);
    for (handle, global) in module.global_variables.iter() {
        if uses[handle].is_empty() {
            continue;
        }
        // An array without a length has at least one element.
        let bytes = module.types[global.ty].inner.size(module.to_ctx());
        match (global.space, global.binding) {
            (AddressSpace::Storage { .. }, Some(binding)) if binding.group == 0 => {
                bindings.push((binding.binding, u64::from(bytes)));
            }
            (AddressSpace::Immediate, _) => immediates = bytes.div_ceil(4),
            (AddressSpace::WorkGroup, _) => {
                shared_bytes += u64::from(bytes).next_multiple_of(SHARED_ALIGNMENT_BYTES);
            }
            (AddressSpace::Private, _) => {}
            _ => return Err("only storage buffers of group 0 and immediates can be bound".into()),
        }
    }
    bindings.sort_unstable();
    let (numbers, bindings): (Vec<u32>, Vec<u64>) = bindings.into_iter().unzip();
    if !numbers.iter().copied().eq(0..numbers.len() as u32) {
        return Err(format!("its bindings are {numbers:?}; they must count from 0"));
    }
    let group = module.entry_points[index].workgroup_size;
    Ok(Interface { bindings, immediates, group, shared_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(wgsl: &str) -> String {
        translate(wgsl, "main").unwrap_err()
    }

    fn entry(wgsl: &str, entry: &str) -> Interface {
        translate(wgsl, entry).unwrap().interface
    }

    #[test]
    fn wrong_shaders_are_refused_with_the_line() {
        assert!(refused("fn main() {").contains("wgsl:1:"));
        assert!(refused("@compute @workgroup_size(1) fn other() {}").contains("no such compute"));
        let gap = "@group(0) @binding(1) var<storage, read_write> x: array<u32>;
            @compute @workgroup_size(1) fn main() { x[0] = 1u; }";
        assert_eq!(refused(gap), "main: its bindings are [1]; they must count from 0");
        let long = "var<immediate> p: array<vec4u, 17>;
            @group(0) @binding(0) var<storage, read_write> x: array<u32>;
            @compute @workgroup_size(1) fn main() { x[0] = p[16].x; }";
        assert_eq!(refused(long), "main: its immediates have more than 256 bytes");
    }

    #[test]
    fn only_what_an_entry_point_uses_counts() {
        let wgsl = "var<immediate> p: vec3u;
            struct Rows { count: u32, rows: array<vec4u> }
            @group(0) @binding(0) var<storage, read_write> x: array<u32>;
            @group(0) @binding(1) var<storage, read_write> y: array<u32, 9>;
            @group(0) @binding(2) var<storage, read_write> z: Rows;
            var<workgroup> w: array<u32, 5>;
            @compute @workgroup_size(1) fn main() { x[0] = p.x; }
            @compute @workgroup_size(2, 3) fn both() { w[0] = y[0]; x[0] = w[1] + z.rows[3].x; }";
        let main =
            Interface { bindings: vec![4], immediates: 3, group: [1, 1, 1], shared_bytes: 0 };
        assert_eq!(entry(wgsl, "main"), main);
        let bindings = vec![4, 36, 32];
        let both = Interface { bindings, immediates: 0, group: [2, 3, 1], shared_bytes: 32 };
        assert_eq!(entry(wgsl, "both"), both);
    }

    #[test]
    fn shaders_use_no_feature_that_is_not_enabled() {
        let wgsl = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
            @compute @workgroup_size(1) fn main() { x[0] = dot4U8Packed(x[1], x[2]); }";
        let spirv = translate(wgsl, "main").unwrap().spirv;
        // `OpCapability` has two words, and is first after the header.
        let of_capability = |words: &&[u32]| words[0] == 2 << 16 | 17;
        let capabilities: Vec<u32> =
            spirv[5..].chunks(2).take_while(of_capability).map(|words| words[1]).collect();
        assert_eq!(capabilities, [spv::Capability::Shader as u32]);
    }

    /// A compiler may treat an endless loop as unreachable, and leave out checks.
    #[test]
    fn loops_are_bounded() {
        let loops = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
            @compute @workgroup_size(1) fn main() { loop { if x[0] == 1u { break; } } }";
        let spirv = translate(loops, "main").unwrap().spirv;
        assert!(spirv.contains(&u32::MAX), "a counter that starts at its largest value");
    }
}
