//! What cargo says about the packages of a workspace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::workspace::Workspace;

/// Folders below a package's `src` that are followed: more means a loop of links.
const SOURCE_DEPTH_MAX: usize = 8;

/// All that the rules look at.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The members of the workspace.
    pub packages: Vec<Package>,
}

/// A member of the workspace.
#[derive(Debug, Clone, Default)]
pub struct Package {
    /// Its name in Cargo.toml.
    pub name: String,
    /// What its Cargo.toml names, of all kinds and for all targets.
    pub dependencies: Vec<Dependency>,
    /// Its normal dependencies and theirs, without what only runs in the compiler, as they are resolved for this
    /// package alone. Filled only where a rule asks for it.
    pub tree: Vec<TreeNode>,
    /// The text of the file that its library (or program) starts with.
    pub root_source: String,
    /// The names and texts of all source files below `src`.
    pub sources: Vec<(String, String)>,
}

/// A dependency as Cargo.toml names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// The package, also if it is renamed.
    pub name: String,
    /// `normal`, `dev` or `build`.
    pub kind: String,
}

/// A package in the tree of another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeNode {
    /// The way to it, from the root of the tree to itself. Never empty.
    pub path: Vec<String>,
    /// The features that are on.
    pub features: Vec<String>,
}

impl TreeNode {
    /// Its name.
    pub fn name(&self) -> &str {
        self.path.last().map_or("", String::as_str)
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<MetadataPackage>,
}

#[derive(Deserialize)]
struct MetadataPackage {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<MetadataDependency>,
    targets: Vec<MetadataTarget>,
}

#[derive(Deserialize)]
struct MetadataDependency {
    name: String,
    kind: Option<String>,
}

#[derive(Deserialize)]
struct MetadataTarget {
    kind: Vec<String>,
    src_path: PathBuf,
}

/// Asks cargo. The tree is taken for the packages in `with_tree`.
pub(super) fn gather(workspace: &Workspace, with_tree: &[&str]) -> Result<Facts> {
    let mut metadata = workspace.cargo();
    metadata.args(["metadata", "--format-version", "1", "--no-deps"]);
    let metadata: Metadata =
        serde_json::from_str(&output(metadata)?).context("can't read what `cargo metadata` says")?;
    let mut packages = Vec::with_capacity(metadata.packages.len());
    for package in metadata.packages {
        let tree = if with_tree.contains(&package.name.as_str()) {
            // Not the graph of `cargo metadata`: that one unites the features of all members.
            let mut tree = workspace.cargo();
            tree.args(["tree", "--package", &package.name, "--edges", "normal,no-proc-macro"]);
            tree.args(["--prefix", "depth", "--format", "{p}|{f}"]);
            parse_tree(&output(tree)?)?
        } else {
            Vec::new()
        };
        packages.push(with_sources(package, tree)?);
    }
    Ok(Facts { packages })
}

fn with_sources(package: MetadataPackage, tree: Vec<TreeNode>) -> Result<Package> {
    let is_root = |target: &&MetadataTarget| {
        target.kind.iter().any(|kind| ["lib", "rlib", "bin", "proc-macro"].contains(&kind.as_str()))
    };
    let root = package.targets.iter().find(is_root).map(|target| &target.src_path);
    let root_source = root.map_or(Ok(String::new()), |path| {
        fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))
    })?;
    let folder = package.manifest_path.parent().context("a manifest without a folder")?;
    let mut sources = Vec::new();
    read_sources(&folder.join("src"), SOURCE_DEPTH_MAX, &mut sources)?;
    let dependencies = package
        .dependencies
        .into_iter()
        .map(|dependency| Dependency {
            name: dependency.name,
            kind: dependency.kind.unwrap_or_else(|| "normal".to_owned()),
        })
        .collect();
    Ok(Package { name: package.name, dependencies, tree, root_source, sources })
}

fn read_sources(folder: &Path, depth: usize, sources: &mut Vec<(String, String)>) -> Result<()> {
    ensure!(depth > 0, "{}: the folders are nested too deeply", folder.display());
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder).with_context(|| format!("can't list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            read_sources(&path, depth - 1, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
            sources.push((path.display().to_string(), text));
        }
    }
    Ok(())
}

/// Reads lines such as `2tokio v1.54.1|default,sync (*)`: depth, package, features.
pub(super) fn parse_tree(text: &str) -> Result<Vec<TreeNode>> {
    let mut path: Vec<String> = Vec::new();
    let mut nodes = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let unexpected = || format!("`cargo tree` printed an unexpected line: {line}");
        let digits = line.find(|c: char| !c.is_ascii_digit()).with_context(unexpected)?;
        let (depth, rest) = line.split_at(digits);
        let depth = depth.parse::<usize>().with_context(unexpected)?;
        let (package, features) = rest.rsplit_once('|').with_context(unexpected)?;
        let name = package.split(' ').next().filter(|name| !name.is_empty()).with_context(unexpected)?;
        ensure!(depth <= path.len(), unexpected());
        path.truncate(depth);
        path.push(name.to_owned());
        let features = features.trim_end_matches(" (*)").split(',');
        let features = features.filter(|feature| !feature.is_empty()).map(str::to_owned).collect();
        nodes.push(TreeNode { path: path.clone(), features });
    }
    Ok(nodes)
}

fn output(mut command: Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("can't run {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed ({}): {}", output.status, said.trim());
    String::from_utf8(output.stdout).with_context(|| format!("{command:?} printed something unreadable"))
}
