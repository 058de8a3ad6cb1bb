//! The shaders of the integrity kernels. They are `kernels.wgsl`, translated beforehand, so that
//! the program is built without a translator of WGSL.

use super::GROUP;
use crate::shader::{Interface, Shader};
use std::ffi::CStr;

/// The words of the source's `Piece`.
const IMMEDIATES: u32 = 12;

/// The passes `take`, `combine` and `put`.
pub(super) fn passes() -> [Shader; 3] {
    let group = [GROUP as u32, 1, 1];
    [
        pass(c"take", include_bytes!("take.spv"), &[4, 4, 16], group, 16),
        pass(c"combine", include_bytes!("combine.spv"), &[4], [1; 3], 0),
        pass(c"put", include_bytes!("put.spv"), &[4, 4], group, 0),
    ]
}

fn pass(name: &CStr, spirv: &[u8], bindings: &[u64], group: [u32; 3], shared_bytes: u64) -> Shader {
    let words = spirv.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word));
    Shader {
        spirv: words.collect(),
        name: name.to_owned(),
        interface: Interface {
            bindings: bindings.to_vec(),
            immediates: IMMEDIATES,
            group,
            shared_bytes,
        },
    }
}

#[cfg(all(test, feature = "wgsl"))]
mod tests {
    use super::*;
    use crate::wgsl::translate;
    use std::{env, fs, path::Path};

    /// `SPILLWAY_WRITE_SPIRV=1` translates them again.
    #[test]
    fn the_committed_shaders_match_the_source() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/integrity_kernels");
        for committed in passes() {
            let name = committed.name.to_str().unwrap();
            let translated = translate(include_str!("kernels.wgsl"), name).unwrap();
            assert_eq!(committed.interface, translated.interface, "{name}");
            if env::var_os("SPILLWAY_WRITE_SPIRV").is_some() {
                let bytes: Vec<u8> =
                    translated.spirv.iter().flat_map(|word| word.to_le_bytes()).collect();
                fs::write(folder.join(name).with_extension("spv"), bytes).unwrap();
            } else {
                assert!(committed == translated, "{name}.spv is out of date: translate it anew");
            }
        }
    }
}
