//! Servers behind TLS, and servers that want a key: with Temporal's own variables and with `temporal.toml`.

use crate::world::{World, run};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// The name in the server's certificate: it is reached under another one.
const NAME: &str = "temporal.test";
/// Names and values.
type Variables<'a> = &'a [(&'a str, &'a str)];
/// What no output may show.
const KEY: &str = "sk-0123456789-secret";

/// A certificate with its key.
struct Certified {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

/// Signs certificates, and keeps them in files.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    own: rcgen::Certificate,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let own = params.self_signed(&key).unwrap();
        Authority { issuer: Issuer::new(params, key), own }
    }

    fn certify(&self, name: &str) -> Certified {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        Certified { certificate: params.signed_by(&key, &self.issuer).unwrap(), key }
    }

    /// A server's side of TLS; with `clients`, only for those with a certificate of theirs.
    fn acceptor(&self, clients: Option<&Authority>) -> TlsAcceptor {
        let provider = Arc::new(default_provider());
        let config = ServerConfig::builder_with_provider(provider.clone());
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = match clients {
            None => config.with_no_client_auth(),
            Some(clients) => {
                let mut roots = RootCertStore::empty();
                roots.add(clients.own.der().clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                config.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let server = self.certify(NAME);
        let key = PrivateKeyDer::try_from(server.key.serialize_der()).unwrap();
        let mut config = config.with_single_cert(vec![server.certificate.der().clone()], key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}

/// Files of a test.
struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, content: &str) -> String {
        let path: PathBuf = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// A configuration file with this profile `default`.
    fn toml(&self, profile: &str) -> String {
        self.write("temporal.toml", &format!("[profile.default]\n{profile}"))
    }
}

/// Listens, and hands each connection to `serve`.
async fn listen<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// Takes TLS off and passes everything on.
async fn terminator(acceptor: TlsAcceptor, to: String) -> String {
    let address = listen(move |stream| {
        let (acceptor, to) = (acceptor.clone(), to.clone());
        async move {
            // Who doesn't get in, or goes, is what the tests are about.
            let Ok(mut inside) = acceptor.accept(stream).await else { return };
            let Ok(mut outside) = TcpStream::connect(&to).await else { return };
            copy_bidirectional(&mut inside, &mut outside).await.ok();
        }
    });
    address.await.to_string()
}

/// The headers of one call.
type Headers = BTreeMap<String, String>;

/// A server that notes the headers of every call, and lets nobody in.
#[derive(Clone, Default)]
struct Doorman(Arc<Mutex<Vec<Headers>>>);

impl Doorman {
    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let Ok(mut connection) = h2::server::handshake(stream).await else { return };
        while let Some(Ok((request, mut answer))) = connection.accept().await {
            let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
            let headers: Headers =
                request.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect();
            // Some servers repeat what they were given.
            let said =
                format!("not{headers:?}known").replace(|c: char| !c.is_ascii_graphic() || c == '%', "-");
            self.0.lock().unwrap().push(headers);
            let response = http::Response::builder()
                .header("content-type", "application/grpc")
                .header("grpc-status", "16")
                .header("grpc-message", said);
            answer.send_response(response.body(()).unwrap(), true).ok();
        }
    }

    fn seen(&self) -> Vec<Headers> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// Runs `tollgate` with these variables beside the namespace, without those that are empty. It doesn't block those who
/// serve it.
fn tollgate(world: &World, arguments: &[&str], variables: Variables<'_>) -> Output {
    let mut command = world.command(arguments);
    for (name, value) in variables {
        if value.is_empty() {
            command.env_remove(name)
        } else {
            command.env(name, value)
        };
    }
    tokio::task::block_in_place(|| command.output().unwrap())
}

fn tollgate_ok(world: &World, arguments: &[&str], variables: Variables<'_>) -> String {
    let output = tollgate(world, arguments, variables);
    assert!(output.status.success(), "{arguments:?} {variables:?}: {}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn commands_and_hosts_reach_a_server_behind_tls() {
    run(async {
        let world = World::new("tls").await;
        let (authority, files) = (Authority::new(), Files::new());
        let address = terminator(authority.acceptor(None), world.address().to_owned()).await;
        let ca_pem = authority.own.pem();
        let ca = files.write("ca.pem", &ca_pem);
        let by_variables = [
            ("TEMPORAL_ADDRESS", address.as_str()),
            ("TEMPORAL_TLS_SERVER_CA_CERT_PATH", &ca),
            ("TEMPORAL_TLS_SERVER_NAME", NAME),
        ];
        let _host = world.host_with(&by_variables);
        tollgate_ok(&world, &["limit", "set", "api", "--rate", "50/s"], &by_variables);
        world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        assert!(tollgate_ok(&world, &["status"], &by_variables).contains("api"));
        let by_data = [
            ("TEMPORAL_ADDRESS", address.as_str()),
            ("TEMPORAL_TLS_SERVER_CA_CERT_DATA", &ca_pem),
            ("TEMPORAL_TLS_SERVER_NAME", NAME),
        ];
        assert!(tollgate_ok(&world, &["status"], &by_data).contains("api"));
        let toml = files.toml(&format!(
            "address = \"{address}\"\n[profile.default.tls]\nserver_ca_cert_path = \"{ca}\"\nserver_name = \"{NAME}\"\n"
        ));
        let by_file = [("TEMPORAL_CONFIG_FILE", toml.as_str()), ("TEMPORAL_ADDRESS", "")];
        let changed = tollgate_ok(&world, &["limit", "set", "api", "--rate", "60/s"], &by_file);
        assert!(changed.contains("60/s"), "{changed}");
        let options = ["status", "--address", &address, "--tls-ca-path", &ca, "--tls-server-name", NAME];
        assert!(tollgate_ok(&world, &options, &[]).contains("api"));
    });
}

#[test]
fn a_server_that_wants_client_certificates_gets_them() {
    run(async {
        let world = World::new("mtls").await;
        let _host = world.host();
        let (authority, clients, files) = (Authority::new(), Authority::new(), Files::new());
        let address = terminator(authority.acceptor(Some(&clients)), world.address().to_owned()).await;
        let client = clients.certify("worker");
        let ca = files.write("ca.pem", &authority.own.pem());
        let certificate = files.write("client.pem", &client.certificate.pem());
        let key = files.write("client.key", &client.key.serialize_pem());
        let server = [
            ("TEMPORAL_ADDRESS", address.as_str()),
            ("TEMPORAL_TLS_SERVER_CA_CERT_PATH", &ca),
            ("TEMPORAL_TLS_SERVER_NAME", NAME),
        ];
        let own =
            [("TEMPORAL_TLS_CLIENT_CERT_PATH", certificate.as_str()), ("TEMPORAL_TLS_CLIENT_KEY_PATH", &key)];
        tollgate_ok(&world, &["status"], &[&server[..], &own].concat());
        let (certificate_pem, key_pem) = (client.certificate.pem(), client.key.serialize_pem());
        let data = [
            ("TEMPORAL_TLS_CLIENT_CERT_DATA", certificate_pem.as_str()),
            ("TEMPORAL_TLS_CLIENT_KEY_DATA", &key_pem),
        ];
        tollgate_ok(&world, &["status"], &[&server[..], &data].concat());
        let toml = files.toml(&format!(
            "address = \"{address}\"\n[profile.default.tls]\nserver_ca_cert_path = \"{ca}\"\nserver_name = \"{NAME}\"\n\
             client_cert_path = \"{certificate}\"\nclient_key_path = \"{key}\"\n"
        ));
        tollgate_ok(&world, &["status"], &[("TEMPORAL_CONFIG_FILE", &toml), ("TEMPORAL_ADDRESS", "")]);

        let stranger = Authority::new().certify("worker");
        let certificate = files.write("stranger.pem", &stranger.certificate.pem());
        let key = files.write("stranger.key", &stranger.key.serialize_pem());
        let strange =
            [("TEMPORAL_TLS_CLIENT_CERT_PATH", certificate.as_str()), ("TEMPORAL_TLS_CLIENT_KEY_PATH", &key)];
        // Whether the reason or the end of the connection is seen first is a matter of luck.
        for (variables, wanted) in [
            (server.to_vec(), "set TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH"),
            ([&server[..], &strange].concat(), "does it accept the client certificate"),
        ] {
            let output = tollgate(&world, &["status"], &variables);
            let said = text(&output);
            assert!(matches!(output.status.code(), Some(2 | 3)), "{said}");
            assert!(said.contains(wanted) && said.lines().count() == 1, "{said}");
        }
    });
}

/// That a command ended at once, with the exit code for wrong settings and one line that says what to do.
fn refused_in_one_line(output: &Output, address: &str, wanted: &str) {
    let said = text(output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.starts_with(&format!("error: Temporal at {address} ")) && said.contains(wanted), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn settings_that_do_not_fit_the_server_are_told_apart() {
    run(async {
        let world = World::new("tls").await;
        let (authority, files) = (Authority::new(), Files::new());
        let address = terminator(authority.acceptor(None), world.address().to_owned()).await;
        let by_name = address.replace("127.0.0.1", "localhost");
        let ca = files.write("ca.pem", &authority.own.pem());
        let other = files.write("other.pem", &Authority::new().own.pem());
        let plain = world.address();
        let ca_variable = "TEMPORAL_TLS_SERVER_CA_CERT_PATH";
        let cases: [(&str, Variables<'_>, &str); 5] = [
            (
                &address,
                &[(ca_variable, &other), ("TEMPORAL_TLS_SERVER_NAME", NAME)],
                "name the authority's certificate",
            ),
            (
                &address,
                &[("TEMPORAL_TLS", "true"), ("TEMPORAL_TLS_SERVER_NAME", NAME)],
                "name the authority's certificate",
            ),
            (&address, &[(ca_variable, &ca)], "for another name"),
            (&by_name, &[(ca_variable, &ca)], "for another name"),
            (plain, &[(ca_variable, &ca)], "answers without TLS"),
        ];
        for (address, variables, wanted) in cases {
            let variables = [&[("TEMPORAL_ADDRESS", address)], variables].concat();
            let began = Instant::now();
            refused_in_one_line(&tollgate(&world, &["status"], &variables), address, wanted);
            assert!(began.elapsed() < Duration::from_secs(20), "{variables:?} took {:?}", began.elapsed());
            refused_in_one_line(&tollgate(&world, &["serve"], &variables), address, wanted);
        }
        // A proxy whose server is still to come ends connections in the same way: this is no proof of wrong settings.
        for address in [&address, &by_name] {
            let output = tollgate(&world, &["status"], &[("TEMPORAL_ADDRESS", address)]);
            let said = text(&output);
            assert_eq!(output.status.code(), Some(3), "{said}");
            assert!(said.contains("does it want TLS? Then set TEMPORAL_TLS=true"), "{said}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
    });
}

#[test]
fn an_api_key_is_sent_over_tls_and_never_shown() {
    run(async {
        let world = World::new("tls").await;
        let (authority, files, doorman) = (Authority::new(), Files::new(), Doorman::default());
        let acceptor = authority.acceptor(None);
        let inside = doorman.clone();
        let address = listen(move |stream| {
            let (acceptor, doorman) = (acceptor.clone(), inside.clone());
            async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    doorman.serve(stream).await;
                }
            }
        });
        let address = address.await.to_string();
        let ca = files.write("ca.pem", &authority.own.pem());
        let toml =
            files.toml(&format!("api_key = \"{KEY}\"\n[profile.default.grpc_meta]\nx_team = \"ops\"\n"));
        let server = [
            ("TEMPORAL_ADDRESS", address.as_str()),
            ("TEMPORAL_TLS_SERVER_CA_CERT_PATH", &ca),
            ("TEMPORAL_TLS_SERVER_NAME", NAME),
            ("RUST_LOG", "trace"),
        ];
        let ways: [Variables<'_>; 2] = [
            &[("TEMPORAL_API_KEY", KEY), ("TEMPORAL_GRPC_META_X_TEAM", "ops")],
            &[("TEMPORAL_CONFIG_FILE", &toml)],
        ];
        for way in ways {
            for arguments in [&["status"][..], &["status", "--json"], &["serve"]] {
                let output = tollgate(&world, arguments, &[&server[..], way].concat());
                let said = text(&output);
                assert_eq!(output.status.code(), Some(1), "{said}");
                assert!(said.contains("asks for credentials") && said.contains("TEMPORAL_API_KEY"), "{said}");
                assert!(!said.contains(KEY), "the key is shown: {said}");
                let seen = doorman.seen();
                assert!(!seen.is_empty(), "{said}");
                for headers in seen {
                    assert_eq!(headers.get("authorization"), Some(&format!("Bearer {KEY}")));
                    assert_eq!(headers.get("x-team").map(String::as_str), Some("ops"));
                }
            }
        }
        let output =
            tollgate(&world, &["status", "--address", &format!("http://{address}"), "--api-key", KEY], &[]);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(!text(&output).contains(KEY) && doorman.seen().is_empty());
        assert!(Path::new(&toml).is_file());
    });
}
