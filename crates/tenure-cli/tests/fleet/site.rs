//! The fleet: a database, two servers with a proxy in front of each, and four workers. Two of these
//! connect to the servers; two connect to the database, one of them through a pooler.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tenure::http::HttpTransport;
use tenure_testbed::{Durability, PgBouncer, Postgres, Proxy};

use crate::clock::until;
use crate::common::{stderr, stdout, tenure};
use crate::process::Process;
use crate::trace::SCRIPT;

/// The kinds, for servers: without commands, so that only workers run jobs.
const KINDS: &str = "\
[kinds.quick.operations.run]
retry = { attempts = 100, initial = \"100ms\", max = \"500ms\" }
#run = [\"./work.sh\", \"2\", \"0.02\"]
[kinds.steady.operations.run]
retry = { attempts = 100, initial = \"100ms\", max = \"500ms\" }
#run = [\"./work.sh\", \"8\", \"0.05\"]
";

/// The resources of the jobs.
pub(crate) const RESOURCES: [&str; 6] =
    ["quick/q0", "quick/q1", "quick/q2", "quick/q3", "steady/s0", "steady/s1"];

pub(crate) const WORKERS: [&str; 4] = ["w0", "w1", "w2", "w3"];

pub(crate) struct Fleet {
    // Dropped in this order: workers, servers, database.
    pub(crate) workers: Vec<Process>,
    pub(crate) servers: Vec<Process>,
    listen: [String; 2],
    key: String,
    pooler: PgBouncer,
    /// In front of the database: one per server, and one for the workers without a server.
    pub(crate) proxies: [Proxy; 3],
    pub(crate) database: String,
    pub(crate) postgres: Postgres,
    pub(crate) dir: TempDir,
}

impl Fleet {
    /// Starts everything.
    pub(crate) fn start() -> Self {
        let postgres = Postgres::start(Durability::Disk).expect("PostgreSQL starts");
        let database = postgres.new_database().expect("a database");
        let proxies = [0, 1, 2].map(|_| Proxy::start(postgres.port()).expect("a proxy"));
        let pooler = PgBouncer::start_on_port(proxies[2].port()).expect("PgBouncer starts");
        let dir = TempDir::new().expect("a directory");
        fs::create_dir(dir.path().join("trace")).expect("it is writable");
        let script = dir.path().join("work.sh");
        fs::write(&script, SCRIPT).expect("it is writable");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("it is ours");
        fs::write(dir.path().join("kinds.toml"), KINDS).expect("it is writable");
        let listen = [free_address(), free_address()];
        let (workers, servers, key) = (Vec::new(), Vec::new(), String::new());
        let mut fleet =
            Self { workers, servers, listen, key, pooler, proxies, database, postgres, dir };
        for n in 0..2 {
            fleet.add_server(n);
        }
        for name in WORKERS {
            fleet.add_worker(name);
        }
        fleet
    }

    fn add_server(&mut self, n: usize) {
        let data = self.file(&format!("server{n}"));
        fs::create_dir(&data).expect("it is writable");
        if n > 0 {
            fs::copy(self.file("server0/admin.key"), data.join("admin.key")).expect("one key");
        }
        let (listen, store) = (self.listen[n].clone(), self.store(n));
        let config = self.text("kinds.toml");
        let args = ["serve", "--listen", &listen, "--store", &store, "--config", &config];
        let mut server = Process::new(&data, self.file(&format!("server{n}.log")), &args, None);
        server.launch();
        self.servers.push(server);
        self.wait_until_listening(n);
        if n == 0 {
            let key = fs::read_to_string(data.join("admin.key")).expect("it was created");
            key.trim().clone_into(&mut self.key);
        }
    }

    fn add_worker(&mut self, name: &str) {
        let n = self.workers.len();
        let settings = format!("[worker]\nslots = 2\nttl = \"3s\"\nname = \"{name}\"\n");
        let config = self.file(&format!("{name}.toml"));
        fs::write(&config, KINDS.replace('#', "") + &settings).expect("it is writable");
        let (option, url) = match n {
            0 | 1 => ("--server", self.url(n)),
            2 => ("--store", self.store(2)),
            _ => (
                "--store",
                self.pooler.url_with_listen_port(self.proxies[2].port(), &self.database),
            ),
        };
        let config = self.text(&format!("{name}.toml"));
        let args = ["worker", option, &url, "--config", &config];
        let log = self.file(&format!("{name}.log"));
        let mut worker = Process::new(self.dir.path(), log, &args, Some(&self.key));
        worker.launch();
        self.workers.push(worker);
    }

    /// Returns the store URL through a proxy.
    pub(crate) fn store(&self, n: usize) -> String {
        let port = self.proxies[n].port();
        format!("postgres://postgres@127.0.0.1:{port}/{}", self.database)
    }

    /// Waits until a server accepts connections. Panics if it has exited.
    pub(crate) fn wait_until_listening(&mut self, n: usize) {
        let (server, listen) = (&mut self.servers[n], &self.listen[n]);
        until(|| {
            assert_eq!(server.poll_exit(), None, "server {n} has exited: {}", server.log());
            std::net::TcpStream::connect(listen).map_err(|error| error.to_string())
        });
    }

    pub(crate) fn url(&self, n: usize) -> String {
        format!("http://{}", self.listen[n])
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn transport(&self, n: usize) -> HttpTransport {
        HttpTransport::new(&self.url(n), &self.key, "default").expect("an address")
    }

    pub(crate) fn sql(&self, sql: &str) -> Result<String, String> {
        self.postgres.psql(&self.database, sql).map_err(|error| error.to_string())
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }

    /// Verifies the history through a server.
    pub(crate) fn verify(&self, n: usize) -> Result<String, String> {
        let mut command = tenure(self.dir.path());
        command.env("TENURE_KEY", &self.key).args(["verify", "--server", &self.url(n)]);
        let output = command.output().expect("it runs");
        let printed = stdout(&output) + &stderr(&output);
        if output.status.success() { Ok(printed) } else { Err(printed) }
    }

    /// Returns the last lines of every log, for panic messages.
    pub(crate) fn logs(&self) -> String {
        let all = self.servers.iter().chain(&self.workers).zip(["0", "1", "w0", "w1", "w2", "w3"]);
        let tail = |(process, name): (&Process, &str)| {
            let log = process.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(12)..].join("\n");
            format!("--- {name}\n{tail}\n")
        };
        all.map(tail).collect()
    }
}

/// Returns an address without a listener.
pub(crate) fn free_address() -> String {
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    free.local_addr().expect("it is bound").to_string()
}

/// The directory of the trace files.
pub(crate) fn traces(dir: &Path) -> PathBuf {
    dir.join("trace")
}
