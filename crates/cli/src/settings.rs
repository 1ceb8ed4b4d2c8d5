//! Where Temporal is and how to get in, as the Temporal CLI finds it out: options, variables, `temporal.toml`.
//!
//! What the SDK would pass over in silence is refused here: a variable with a value that isn't one, a file that isn't
//! there, and settings that tollgate can't follow.

use crate::args;
use crate::failure::Failure;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;
use temporalio_client::envconfig::{ClientConfigProfile, DataSource, LoadClientConfigProfileOptions};
use temporalio_common::envconfig::{ClientConfigTLS, load_client_config_profile};

/// What Temporal's variables begin with.
const PREFIX: &str = "TEMPORAL_";
/// Variables that say yes or no.
const SWITCHES: [&str; 2] = ["TEMPORAL_TLS", "TEMPORAL_TLS_DISABLE_HOST_VERIFICATION"];

/// The settings of the command line, over those of the variables, over those of the file.
///
/// # Errors
/// [`Failure::Usage`] naming the setting, its value and what is allowed. Never with a key in it.
pub fn profile(
    options: &args::Temporal,
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<ClientConfigProfile, Failure> {
    let variables = readable(variables)?;
    check_variables(&variables)?;
    let file = options.config_file.as_ref().map(|file| file.display().to_string());
    let named = [
        ("--config-file", file.as_deref()),
        ("TEMPORAL_CONFIG_FILE", variables.get("TEMPORAL_CONFIG_FILE").map(String::as_str)),
    ];
    if let Some((by, file)) = named.into_iter().find_map(|(by, file)| Some((by, file?)))
        && !Path::new(file).is_file()
    {
        return Err(Failure::Usage(format!("{by} {file}: there is no such file")));
    }
    let load = LoadClientConfigProfileOptions::builder()
        .maybe_config_source(file.map(DataSource::Path))
        .maybe_config_file_profile(options.profile.clone())
        .build();
    let mut profile = load_client_config_profile(load, Some(&variables))
        .map_err(|error| Failure::Usage(format!("connection settings: {}", one_line(&error.to_string()))))?;
    override_with(&mut profile, options);
    drop_empty(&mut profile);
    check(&profile)?;
    Ok(profile)
}

/// Whether a connection with these settings is encrypted.
pub fn is_encrypted(profile: &ClientConfigProfile) -> bool {
    match &profile.tls {
        Some(tls) => tls.disabled != Some(true),
        None => profile.api_key.is_some(),
    }
}

/// Temporal's variables. Those of others may hold anything.
fn readable(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<HashMap<String, String>, Failure> {
    let mut read = HashMap::new();
    for (name, value) in variables {
        let Ok(name) = name.into_string() else { continue };
        if !name.starts_with(PREFIX) {
            continue;
        }
        // The value may be a key: it isn't shown.
        let value = value.into_string().map_err(|_| Failure::Usage(format!("{name}: it is not UTF-8")))?;
        read.insert(name, value);
    }
    read.retain(|name, value| name != "TEMPORAL_CONFIG_FILE" || !value.is_empty());
    Ok(read)
}

fn check_variables(variables: &HashMap<String, String>) -> Result<(), Failure> {
    for name in SWITCHES {
        let Some(value) = variables.get(name) else { continue };
        if !["true", "false", "1", "0"].contains(&value.to_lowercase().as_str()) {
            return Err(Failure::Usage(format!("{name} is {value:?}; allowed: true, false, 1, 0")));
        }
    }
    if let Some(name) = variables.get("TEMPORAL_ENV").filter(|name| !["", "default"].contains(&name.as_str()))
    {
        return Err(Failure::Usage(format!(
            "TEMPORAL_ENV is {name:?}: environments of the Temporal CLI are not read; use a profile of temporal.toml and \
             TEMPORAL_PROFILE"
        )));
    }
    Ok(())
}

fn override_with(profile: &mut ClientConfigProfile, options: &args::Temporal) {
    let over = |target: &mut Option<String>, given: &Option<String>| {
        if given.is_some() {
            target.clone_from(given);
        }
    };
    over(&mut profile.address, &options.address);
    over(&mut profile.namespace, &options.namespace);
    over(&mut profile.api_key, &options.api_key);
    let files =
        [&options.tls_ca_path, &options.tls_cert_path, &options.tls_key_path, &options.tls_server_name];
    if options.tls || files.iter().any(|file| file.is_some()) {
        let tls = profile.tls.get_or_insert_with(ClientConfigTLS::default);
        tls.disabled = Some(false);
        let file = |target: &mut Option<DataSource>, given: &Option<String>| {
            if let Some(path) = given {
                *target = Some(DataSource::Path(path.clone()));
            }
        };
        file(&mut tls.server_ca_cert, &options.tls_ca_path);
        file(&mut tls.client_cert, &options.tls_cert_path);
        file(&mut tls.client_key, &options.tls_key_path);
        over(&mut tls.server_name, &options.tls_server_name);
    }
}

/// A setting that is empty is one that isn't set: so a variable can take back what the file says.
fn drop_empty(profile: &mut ClientConfigProfile) {
    let text = |setting: &mut Option<String>| {
        setting.take_if(|value| value.is_empty());
    };
    text(&mut profile.address);
    text(&mut profile.namespace);
    text(&mut profile.api_key);
    if let Some(codec) = &mut profile.codec {
        text(&mut codec.endpoint);
    }
    if let Some(tls) = &mut profile.tls {
        text(&mut tls.server_name);
        for source in [&mut tls.server_ca_cert, &mut tls.client_cert, &mut tls.client_key] {
            source.take_if(|source| match source {
                DataSource::Path(path) => path.is_empty(),
                DataSource::Data(data) => data.is_empty(),
                _ => false,
            });
        }
    }
}

fn check(profile: &ClientConfigProfile) -> Result<(), Failure> {
    let encrypted = is_encrypted(profile);
    if let Some(address) = &profile.address {
        check_address(address, encrypted)?;
    }
    if profile.api_key.as_ref().is_some_and(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
        return Err(Failure::Usage(
            "the API key has blanks, ends of lines or other characters that can't be sent; allowed: visible ASCII \
             characters"
                .to_owned(),
        ));
    }
    if let Some(endpoint) = profile.codec.as_ref().and_then(|codec| codec.endpoint.as_ref()) {
        return Err(Failure::Usage(format!(
            "a codec server is set ({endpoint}): tollgate uses none, its messages hold limits and counts in plain JSON; \
             set TEMPORAL_CODEC_ENDPOINT to nothing for it, or use a profile without a codec"
        )));
    }
    let Some(tls) = profile.tls.as_ref().filter(|_| encrypted) else { return Ok(()) };
    if tls.disable_host_verification {
        return Err(Failure::Usage(
            "TEMPORAL_TLS_DISABLE_HOST_VERIFICATION (disable_host_verification) is set: tollgate always verifies the server; \
             name the authority of its certificate with TEMPORAL_TLS_SERVER_CA_CERT_PATH, and its name with \
             TEMPORAL_TLS_SERVER_NAME"
                .to_owned(),
        ));
    }
    let files = [
        ("certificate of the server's authority", &tls.server_ca_cert),
        ("client certificate", &tls.client_cert),
        ("key of the client certificate", &tls.client_key),
    ];
    for (what, source) in files {
        check_pem(what, source.as_ref())?;
    }
    if tls.client_cert.is_some() != tls.client_key.is_some() {
        let (there, missing) =
            if tls.client_cert.is_some() { ("certificate", "key") } else { ("key", "certificate") };
        return Err(Failure::Usage(format!(
            "there is a client {there} and no client {missing}: set both TEMPORAL_TLS_CLIENT_CERT_PATH and \
             TEMPORAL_TLS_CLIENT_KEY_PATH"
        )));
    }
    Ok(())
}

/// Host and port, with a scheme only where it says the same as the other settings: otherwise a key would go out in clear.
fn check_address(address: &str, encrypted: bool) -> Result<(), Failure> {
    let (scheme, rest) =
        address.split_once("://").map_or((None, address), |(scheme, rest)| (Some(scheme), rest));
    let refuse = |why: &str| Err(Failure::Usage(format!("address {address:?}: {why}")));
    match (scheme, encrypted) {
        (None, _) | (Some("https"), true) | (Some("http"), false) => {}
        (Some("http"), true) => {
            return refuse("http:// is without TLS, and an API key or TLS is set; leave http:// out");
        }
        (Some("https"), false) => return refuse("https:// needs TLS: set TEMPORAL_TLS=true or --tls"),
        (Some(_), _) => return refuse("allowed: HOST:PORT, such as localhost:7233"),
    }
    let (host, port) = rest.trim_end_matches('/').rsplit_once(':').unwrap_or_default();
    let is_host = !host.is_empty()
        && host.chars().all(|c| c.is_alphanumeric() || "-._[]:".contains(c))
        // An IPv6 address stands in brackets.
        && (!host.contains(':') || host.starts_with('[') && host.ends_with(']'));
    if !is_host || !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return refuse("allowed: HOST:PORT, such as localhost:7233");
    }
    Ok(())
}

/// That a certificate or key is there and in PEM: the SDK's messages name neither the file nor what is wrong.
fn check_pem(what: &str, source: Option<&DataSource>) -> Result<(), Failure> {
    let (named, content) = match source {
        None => return Ok(()),
        Some(DataSource::Path(path)) => {
            let read = std::fs::read(path);
            (path.as_str(), read.map_err(|error| Failure::Usage(format!("{what} {path}: {error}")))?)
        }
        Some(DataSource::Data(data)) => ("in the settings", data.clone()),
        Some(_) => return Ok(()),
    };
    if !String::from_utf8_lossy(&content).contains("-----BEGIN ") {
        return Err(Failure::Usage(format!("{what} {named}: no PEM block (-----BEGIN ...) in it")));
    }
    Ok(())
}

/// The error in a file comes with the line that it is on, drawn beneath it; that line may hold a key.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| {
        let is_drawn = line.starts_with('|')
            || line.split_once('|').is_some_and(|(n, _)| n.trim().parse::<u32>().is_ok());
        !line.is_empty() && !is_drawn
    });
    lines.collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt as _;

    fn load(options: &args::Temporal, variables: &[(&str, &str)]) -> Result<ClientConfigProfile, String> {
        let home = [("TEMPORAL_CONFIG_FILE", "")];
        let variables = home.iter().chain(variables).map(|(name, value)| (name.into(), value.into()));
        profile(options, variables).map_err(|failure| failure.to_string())
    }

    fn by_address(address: &str) -> args::Temporal {
        args::Temporal { address: Some(address.to_owned()), ..args::Temporal::default() }
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for good in
            ["localhost:7233", "10.0.0.1:7233", "[::1]:7233", "a-b.tmprl.cloud:7233", "http://localhost:7233"]
        {
            assert!(load(&by_address(good), &[]).is_ok(), "{good}");
        }
        for bad in [
            "nonsense",
            ":7233",
            "host:",
            "host:0",
            "host:99999",
            "a b:7233",
            "::1:7233",
            "ftp://host:1",
            "u@h:1",
        ] {
            let error = load(&by_address(bad), &[]).unwrap_err();
            assert_eq!(error, format!("address {bad:?}: allowed: HOST:PORT, such as localhost:7233"));
        }
    }

    #[test]
    fn a_key_never_goes_out_in_clear_by_mistake() {
        let key = [("TEMPORAL_API_KEY", "sk-1")];
        assert!(is_encrypted(&load(&by_address("host:1"), &key).unwrap()));
        assert!(load(&by_address("https://host:1"), &key).is_ok());
        assert!(load(&by_address("http://host:1"), &key).unwrap_err().contains("leave http:// out"));
        assert!(load(&by_address("https://host:1"), &[]).unwrap_err().contains("TEMPORAL_TLS=true"));
    }

    #[test]
    fn nothing_that_cannot_be_followed_is_passed_over() {
        for (name, value, wanted) in [
            ("TEMPORAL_TLS", "yes", "TEMPORAL_TLS is \"yes\"; allowed: true, false, 1, 0"),
            ("TEMPORAL_TLS_DISABLE_HOST_VERIFICATION", "no", "allowed: true, false, 1, 0"),
            ("TEMPORAL_TLS_DISABLE_HOST_VERIFICATION", "true", "always verifies the server"),
            ("TEMPORAL_CODEC_ENDPOINT", "http://codec:1", "http://codec:1"),
            (
                "TEMPORAL_CONFIG_FILE",
                "/nonexistent.toml",
                "TEMPORAL_CONFIG_FILE /nonexistent.toml: there is no such file",
            ),
            ("TEMPORAL_ENV", "prod", "TEMPORAL_ENV is \"prod\""),
            ("TEMPORAL_PROFILE", "nonesuch", "nonesuch"),
            ("TEMPORAL_TLS_CLIENT_CERT_DATA", "-----BEGIN X", "no client key: set both"),
            (
                "TEMPORAL_TLS_SERVER_CA_CERT_PATH",
                "/nonexistent.pem",
                "authority /nonexistent.pem: No such file",
            ),
        ] {
            let error = load(&args::Temporal::default(), &[(name, value)]).unwrap_err();
            assert!(error.contains(wanted), "{name}={value}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn errors_do_not_show_keys() {
        let secret = "sk-secret";
        for (name, value) in [
            ("TEMPORAL_API_KEY", "sk-secret\n"),
            ("TEMPORAL_TLS_CLIENT_KEY_DATA", "sk-secret"),
            ("TEMPORAL_TLS_SERVER_CA_CERT_DATA", "sk-secret"),
        ] {
            let error = load(&args::Temporal::default(), &[(name, value)]).unwrap_err();
            assert!(!error.contains(secret), "{error}");
        }
        let mut raw = b"sk-secret".to_vec();
        raw.push(0xff);
        let raw = [("TEMPORAL_API_KEY".into(), OsString::from_vec(raw))];
        let error = profile(&args::Temporal::default(), raw.into_iter()).unwrap_err().to_string();
        assert_eq!(error, "TEMPORAL_API_KEY: it is not UTF-8");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("temporal.toml");
        std::fs::write(&file, "[profile.default]\napi_key = \"sk-secret\nnamespace = 1\n").unwrap();
        let options = args::Temporal { config_file: Some(file), ..args::Temporal::default() };
        let error = load(&options, &[]).unwrap_err();
        assert!(error.contains("line 2") && !error.contains(secret) && !error.contains('\n'), "{error}");
    }

    #[test]
    fn what_is_empty_is_not_set_and_other_programs_variables_do_not_matter() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("temporal.toml");
        let text = "[profile.default]\naddress = \"host:1\"\napi_key = \"k\"\n[profile.default.codec]\nendpoint = \"http://c:1\"\n";
        std::fs::write(&file, text).unwrap();
        let options = args::Temporal { config_file: Some(file), ..args::Temporal::default() };
        assert!(load(&options, &[]).unwrap_err().contains("http://c:1"));
        let taken_back =
            [("TEMPORAL_CODEC_ENDPOINT", ""), ("TEMPORAL_API_KEY", ""), ("TEMPORAL_ADDRESS", "")];
        let profile = load(&options, &taken_back).unwrap();
        assert_eq!((profile.address.as_deref(), profile.api_key.as_deref()), (None, None));
        let odd =
            [("OTHER".into(), OsString::from_vec(vec![0xff])), ("TEMPORAL_CONFIG_FILE".into(), "".into())];
        assert!(super::profile(&args::Temporal::default(), odd.into_iter()).is_ok());
    }
}
