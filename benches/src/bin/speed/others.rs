//! What else moves messages between two processes of a host: UCX and Open MPI over shared memory, and libfabric's reliable
//! messages over UDP. Each is its own test program, or a small one of ours; where it is not installed, that is a skip.

use std::io::Read;
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::ends::Result;
use crate::run::Run;

/// No test of the others may take longer.
const LIMIT: Duration = Duration::from_secs(20);

/// A test program under way; ended when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Only what did not end by itself is still there.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// On one processor, as the ends of the software device are.
    fn start(cpu: usize, command: &[&str], variables: &[(&str, &str)]) -> Result<Running> {
        let mut program = Command::new("taskset");
        program.args(["-c", &cpu.to_string()]).args(command);
        program.envs(variables.iter().copied());
        program
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(Running(program.spawn()?))
    }

    /// Waits for its end; gives what it printed.
    fn output(mut self) -> Result<String> {
        let until = Instant::now() + LIMIT;
        let mut text = String::new();
        // What these print is far less than a pipe holds.
        let status = loop {
            match self.0.try_wait()? {
                Some(status) => break status,
                None if Instant::now() > until => {
                    return Err(format!("not done after {LIMIT:?}").into());
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        if let Some(mut out) = self.0.stdout.take() {
            out.read_to_string(&mut text)?;
        }
        if status.success() {
            return Ok(text);
        }
        let mut why = String::new();
        if let Some(mut err) = self.0.stderr.take() {
            err.read_to_string(&mut why)?;
        }
        Err(format!(
            "{status}: {}",
            why.trim().lines().last().unwrap_or("no word")
        )
        .into())
    }
}

fn is_there(program: &str) -> bool {
    let found = Command::new("which")
        .arg(program)
        .stdout(Stdio::null())
        .status();
    found.is_ok_and(|status| status.success())
}

/// A port that was free a moment ago.
fn port() -> Result<String> {
    Ok(UdpSocket::bind("127.0.0.1:0")?
        .local_addr()?
        .port()
        .to_string())
}

/// The two ends of a test: one that waits, and one that is told where. Gives what the second printed.
fn both(server: &[&str], client: &[&str], variables: &[(&str, &str)]) -> Result<String> {
    let server = Running::start(1, server, variables)?;
    // There is no sign by which it says that it listens.
    std::thread::sleep(Duration::from_millis(120));
    let text = Running::start(0, client, variables)?.output()?;
    // Whether it ends well says nothing about the figure.
    drop(server);
    Ok(text)
}

/// Whether messages of that size are sent by the others' programs, each of which takes a while to start.
fn is_asked(quick: bool, size: u64) -> bool {
    !quick || [64, 65536].contains(&size)
}

/// Runs `test`, a second time if it failed; notes a skip if it fails again.
fn attempt(run: &mut Run, name: &str, test: impl Fn(&mut Run) -> Result<()>) {
    if let Err(first) = test(run)
        && let Err(second) = test(run)
    {
        run.samples.skip(name, format!("{first}; again: {second}"));
    }
}

/// libfabric's `udp;ofi_rxd`: half of a round trip with fi_pingpong. It has no streams, so the bandwidth is that of one message
/// at a time.
fn libfabric(run: &mut Run) {
    let tests = [
        (8, 2000),
        (64, 2000),
        (4096, 1000),
        (65536, 100),
        (1 << 20, 10),
    ];
    let quick = run.quick;
    for (size, count) in tests.into_iter().filter(|(size, _)| is_asked(quick, *size)) {
        let count = run.less(count, 4).to_string();
        attempt(run, &format!("libfabric-udp-{size}"), |run| {
            let (port, bytes) = (port()?, size.to_string());
            let same = ["-p", "udp;ofi_rxd", "-e", "rdm", "-S", &bytes, "-I", &count];
            let server = [&["fi_pingpong", "-B", &port], &same[..]].concat();
            let client = [&["fi_pingpong", "-P", &port], &same[..], &["127.0.0.1"]].concat();
            let text = both(&server, &client, &[("FI_LOG_LEVEL", "error")])?;
            // bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec
            let line = text.lines().last().unwrap_or_default();
            let us = line.split_whitespace().rev().nth(1);
            let us: f64 = us.ok_or("no figures")?.parse()?;
            if us <= 0.0 {
                return Err("a time of 0".into());
            }
            run.samples
                .note("udp latency", "libfabric udp;ofi_rxd", size, us);
            if size >= 64 {
                let one = "libfabric udp;ofi_rxd, one at a time";
                let rate = size as f64 / us / 1e3;
                run.samples.note("udp bandwidth", one, size, rate);
            }
            Ok(())
        });
    }
}

/// UCX over shared memory, by ucx_perftest.
fn ucx(run: &mut Run) {
    let tests = [
        (8, 40_000),
        (64, 40_000),
        (4096, 20_000),
        (65536, 3000),
        (1 << 20, 200),
    ];
    let quick = run.quick;
    for (size, count) in tests.into_iter().filter(|(size, _)| is_asked(quick, *size)) {
        for (test, measure) in [("tag_lat", "shm latency"), ("tag_bw", "shm bandwidth")] {
            if size == 8 && test == "tag_bw" {
                continue;
            }
            let count = run.less(count, 4);
            attempt(run, &format!("ucx-{test}-{size}"), |run| {
                let (port, bytes) = (port()?, size.to_string());
                let (count, warm) = (count.to_string(), (count / 10).to_string());
                let server = ["ucx_perftest", "-p", &port];
                let client = [
                    "ucx_perftest",
                    "-p",
                    &port,
                    "127.0.0.1",
                    "-t",
                    test,
                    "-s",
                    &bytes,
                    "-n",
                    &count,
                    "-w",
                    &warm,
                    "-v",
                ];
                let variables = [
                    ("UCX_TLS", "posix,self"),
                    ("UCX_NET_DEVICES", "lo"),
                    ("UCX_LOG_LEVEL", "error"),
                    ("UCX_WARN_UNUSED_ENV_VARS", "n"),
                ];
                let text = both(&server, &client, &variables)?;
                // iterations, latency: median, average, overall; MiB/s: average, overall; messages/s: the same.
                let line = text.lines().last().unwrap_or_default();
                let fields: Vec<&str> = line.split(',').collect();
                let field = |at: usize| -> Result<f64> {
                    Ok(fields.get(at).ok_or("no figures")?.trim().parse()?)
                };
                let value = if test == "tag_lat" {
                    field(2)?
                } else {
                    field(5)? * 1_048_576.0 / 1e9
                };
                run.samples.note(measure, "UCX, tag", size, value);
                Ok(())
            });
        }
    }
}

/// Open MPI over shared memory, by `speed/mpi.c`, of which `program` was built.
fn mpi(run: &mut Run, program: &str) {
    attempt(run, "openmpi", |run| {
        let divisor = if run.quick { "20" } else { "1" };
        let command = [
            "mpirun.openmpi",
            "--host",
            "localhost:2",
            "-np",
            "2",
            "--bind-to",
            "core",
            "--mca",
            "plm",
            "isolated",
            "--mca",
            "pml",
            "ob1",
            "--mca",
            "btl",
            "vader,self",
            "--mca",
            "btl_vader_single_copy_mechanism",
            "none",
            program,
            divisor,
        ];
        let variables = [
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("OMPI_MCA_oob_tcp_if_include", "lo"),
            ("PMIX_MCA_gds", "hash"),
        ];
        let mut running = Command::new(command[0]);
        running.args(&command[1..]).envs(variables);
        running
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let text = Running(running.spawn()?).output()?;
        for line in text.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if let [kind @ ("lat" | "bw"), size, value] = fields[..] {
                let (size, value): (u64, f64) = (size.parse()?, value.parse()?);
                if kind == "lat" {
                    run.samples.note("shm latency", "Open MPI", size, value);
                } else if size >= 64 {
                    run.samples.note("shm bandwidth", "Open MPI", size, value);
                }
            }
        }
        Ok(())
    });
}

/// All of them, once.
pub fn all(run: &mut Run, mpi_program: Option<&str>) -> Result<()> {
    run.samples.pass = run.passes(1).start;
    let absent = |run: &mut Run, name: &str, what: &str| {
        run.samples.skip(name, format!("{what} is not installed"));
    };
    match is_there("fi_pingpong") {
        true => libfabric(run),
        false => absent(run, "libfabric-udp", "fi_pingpong (libfabric-bin)"),
    }
    match is_there("ucx_perftest") {
        true => ucx(run),
        false => absent(run, "ucx", "ucx_perftest (ucx-utils)"),
    }
    match mpi_program.filter(|_| is_there("mpirun.openmpi")) {
        Some(program) => mpi(run, program),
        None => absent(run, "openmpi", "Open MPI (openmpi-bin, libopenmpi-dev)"),
    }
    Ok(())
}
