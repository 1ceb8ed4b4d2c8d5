//! Compiles the messages of `proto/tollgate/state/v1` without protoc.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto");
    let folder = root.join("tollgate/state/v1");
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "proto") {
            println!("cargo::rerun-if-changed={}", path.display());
            files.push(path);
        }
    }
    // The order of a directory differs between machines; the generated file shouldn't.
    files.sort();
    prost_build::Config::new().compile_fds(protox::compile(files, [root])?)?;
    Ok(())
}
