//! Commands of the guide: those that are performed, with the text that each shows, and those that
//! are not.

/// Commands and what each prints, or writes into the file that it names with `-o`.
pub type Performed = &'static [(&'static str, &'static str)];

/// On the machine that it was built on.
pub const INSTALLING: Performed = &[
    (
        "install -m 755 target/release/mem_profiler target/release/mem_parser target/release/mem_server /usr/local/bin/",
        "",
    ),
    (
        "install -m 755 target/release/libmem_agent.so /usr/local/lib/",
        "",
    ),
    (
        "mem_profiler completions bash > /etc/bash_completion.d/mem_profiler",
        "",
    ),
    (
        "mkdir -p /usr/local/share/man/man1 && mem_profiler man /usr/local/share/man/man1",
        "",
    ),
];

/// A redis-server that runs, and a server that leaks.
pub const SESSIONS: Performed = &[
    ("mem_profiler list", "redis-server"),
    (
        "mem_profiler -s 5 -c 1024 -o /tmp/prof_ -p redis-server",
        "succeeded",
    ),
    ("mem_parser /tmp/prof_redis-server.*.0001.heap", "flat%"),
    ("mem_profiler list --all", "redis-server"),
    ("mem_profiler --help", "Usage: "),
    ("mem_parser --help", "Usage: "),
    ("mem_profiler man /tmp", ""),
    ("mem_profiler -s 1 -p 'serv*' -p 'redis*' -o m_", "PROCESS"),
    ("mem_profiler why -p redis-server", "live heap"),
    ("mem_profiler -s 60 -p 18140 -o /tmp/prof_", "succeeded"),
    (
        "mem_parser -p /proc/18140/root/usr/bin/redis-server -f /tmp/prof_redis-server.18140.0001.heap -t",
        "File: redis-server",
    ),
    (
        "mem_profiler run --python-malloc --peak --every-growth 20M -o trig_ -- /usr/bin/python3 grow.py",
        "high-water mark",
    ),
    (
        "mem_profiler -s 8 -c 256 --max-overhead 1% -o gov_ -p server",
        "succeeded",
    ),
    (
        "mem_parser -p ./server -f gov_server.19893.0001.heap -t -n 3",
        "open_session",
    ),
    (
        "mem_parser --rss -f rss_server.8241.0001.heap",
        "Resident memory",
    ),
];

/// In a session without an end.
pub const WITHIN: Performed = &[
    ("mem_profiler leaks -p server", "lost in"),
    (
        "mem_profiler leaks -p server --path open_session",
        "variable sessions",
    ),
    ("mem_profiler dump -p 20028 -o snap_", "snap_server"),
    ("mem_profiler dump --peak -p server -o peak_", "peak_server"),
    ("mem_profiler stop -p 20028 -o last_", "last_server"),
];

/// On dumps of redis-server.
pub const REDIS: Performed = &[
    (
        "mem_parser -p /usr/bin/redis-server -f redis.heap -t -n 8",
        "flat%",
    ),
    (
        "mem_parser -p /usr/bin/redis-server -f redis.heap -s -o out.svg",
        "zmalloc",
    ),
    (
        "mem_parser -p /usr/bin/redis-server -f redis.heap --flame -o flame.svg",
        "zmalloc",
    ),
    (
        "mem_parser -p /usr/bin/redis-server -f redis.heap --diff_base early.heap --flame -o change.svg",
        "setTypeAdd",
    ),
    (
        "mem_parser -p /usr/bin/redis-server -f redis.heap --html -o page.html",
        "</html>",
    ),
    (
        "mem_parser -p /usr/bin/redis-server -f redis.heap --peek '^dictAdd$'",
        "zsetAdd",
    ),
    (
        "mem_parser redis.heap --sizes -n 2 --hide '^z(m|c|re)alloc'",
        "16-31 B",
    ),
    (
        "mem_parser redis.heap --threads --hide '^z(m|c|re)alloc'",
        "redis-server\n",
    ),
    (
        "mem_parser redis.heap --temporary -n 4 --hide '^z(m|c|re)alloc'",
        "short-lived",
    ),
];

/// On a redis-server under load.
pub const CPU: Performed = &[
    (
        "mem_profiler cpu -p redis-server -s 30 -o /tmp/cpu_",
        "of stacks complete",
    ),
    (
        "mem_parser -f /tmp/cpu_redis-server.9910.0001.cpu -t -n 8",
        "Process clock",
    ),
    (
        "mem_parser -f /tmp/cpu_redis-server.9910.0001.cpu --flame -o cpu.svg",
        "processCommand",
    ),
    (
        "mem_profiler rss -p redis-server -s 30 -o /tmp/rss_",
        "resident, of which",
    ),
    (
        "mem_parser /tmp/rss_redis-server.9910.0001.rss",
        "[resident before the start]",
    ),
    (
        "mem_profiler both -p redis-server -s 30 -o /tmp/both_ --html",
        "both_redis-server",
    ),
    (
        "mem_parser redis.heap /tmp/cpu_redis-server.9910.0001.cpu --html -o both.html",
        "Cost of malloc",
    ),
    (
        "mem_parser -f /tmp/cpu_redis-server.9910.0001.cpu --gperftools -o redis.prof",
        "",
    ),
];

/// On a series of dumps of the server.
pub const SERVER: Performed = &[
    (
        "mem_profiler -s 11 --every 2s -o leak_ -p server",
        ".0006.heap",
    ),
    (
        "mem_parser --timeline -p ./server -f leak_server.12476.0006.heap",
        "Live: ",
    ),
    (
        "mem_parser -p ./server -f leak_server.4849.0006.heap --list open_session --source_path .",
        "12:}",
    ),
    (
        "mem_parser -p ./server -f leak_server.4849.0006.heap --proto -o server.pb.gz",
        "",
    ),
    (
        "go tool pprof -top -nodecount=2 server.pb.gz",
        "open_session",
    ),
    (
        "mem_parser -p ./server -f leak_server.4849.0006.heap --csv",
        "open_session,",
    ),
    (
        "mem_parser -p ./server -f leak_server.4849.0006.heap --symbolize -o whole.heap",
        "open_session",
    ),
    ("mem_parser -f whole.heap -t -n 1", "top 1 nodes"),
    (
        "mem_parser -p ./server -f leak_server.4849.0006.heap --base leak_server.4849.0001.heap -t -n 6",
        "open_session",
    ),
    (
        "mem_parser -p ./server --leaks -n 2 -f leak_server.4849.*.heap",
        "server.cpp:1",
    ),
    (
        "mem_parser -p ./server -f leak_server.4849.0006.heap -t --ci -n 2",
        "±",
    ),
];

/// After a job was started that is killed.
pub const POST_MORTEM: Performed = &[
    ("kill -9 29621", ""),
    ("mem_profiler recover -o post_", "ended during the session"),
];

/// On two builds of a program.
pub const BUILDS: Performed = &[
    (
        "mem_profiler run -c 1 --peak -o /tmp/new_ -- ./app",
        "high-water mark",
    ),
    (
        "mem_parser /tmp/new_app.*.0001.heap --diff_base base.heap --force -t",
        "grow_more",
    ),
];

/// A package that was copied to a board.
pub const UNPACKING: Performed = &[
    ("tar -xJf mem-profiler-0.1.0-aarch64.tar.xz", ""),
    (
        "xz -dc mem-profiler-0.1.0-aarch64.tar.xz | gzip -9 > mem-profiler.tar.gz",
        "",
    ),
    ("sha256sum /opt/mem-profiler.tar.gz", "mem-profiler.tar.gz"),
    (
        "tar -xJf mem-profiler-0.1.0-aarch64.tar.xz -C /opt && mv /opt/mem-profiler-0.1.0-aarch64 /opt/mem-profiler",
        "",
    ),
    (
        ". /opt/mem-profiler/setup.bash && mem_profiler --version",
        "mem_profiler 0",
    ),
    (
        "(. /opt/mem-profiler/setup.bash) && . /opt/mem-profiler/setup.bash && use_mem_agent planner 'lidar*' || :",
        "planner:lidar* will carry",
    ),
];

/// On a module that leaks.
pub const BOARD: Performed = &[
    ("grep VmRSS /proc/$(pidof planner)/status", "VmRSS"),
    ("grep '^# ' prof_planner.13458.0001.heap", "# trigger"),
    ("mem_profiler why -p planner", "live heap"),
    (
        "mem_profiler top --once --sort growth -p planner",
        "Tracker::update",
    ),
    (
        "mem_profiler top --once -c 1024 --sort growth --filter Tracker -p planner",
        "Tracker::predict",
    ),
    (
        "mem_parser -t -n 20 prof_planner.13458.0001.heap",
        "Tracker::update",
    ),
    (
        "mem_parser -t -f prof_planner.13458.0001.heap --symbol-path /srv/board-root",
        "Tracker::update",
    ),
    (
        "/opt/mem-profiler/share/mem-profiler/collect.bash -s 20 -e 4s -p planner -o /tmp",
        "/tmp/mem-profiler-",
    ),
    (
        "tar -xzf /tmp/mem-profiler-vm-20261122-132622.tar.gz && head -n 12 mem-profiler-*/reports/*.leaks.txt",
        "planner.cpp:24 in Tracker::predict",
    ),
];

/// Commands that stay in the background.
pub const BACKGROUND: &[&str] = &[
    "LD_PRELOAD=/usr/local/lib/libmem_agent.so redis-server --port 7000 &",
    "MEM_PROFILER_START=1 LD_PRELOAD=/usr/local/lib/libmem_agent.so PYTHONMALLOC=malloc python3 job.py &",
];

const GROUP: &str = "needs a control group: tests/tests/ledger.rs makes one";
const GO: &str = "needs a program of Go: tests/tests/go_heap.rs has several";
pub const LEAKS: &str = "tests/tests/leak_check.rs does it";
pub const SERVED: &str = "tests/tests/serve.rs does it, with a port that is free";
pub const HUNT: &str = "the leak hunt: tests/tests/hunt.rs performs it on ujson; the other programs are built for minutes";
pub const TRAINER: &str = "tests/tests/python.rs compares Python's lines with the program's own";
pub const LINE: &str = "needs a board, or a serial line to one";
pub const PACKAGE: &str =
    "needs a package, which takes deploy/build ten minutes; deploy/smoke-old tries it";

pub const MIGRATION: &str = "tests/tests/migration.rs does it";
pub const PUSH: &str = "tests/tests/push.rs does it";
pub const CLICKHOUSE: &str = "tests/tests/clickhouse.rs does it, without a server";

/// Commands that are not performed here, and why.
pub const ELSEWHERE: &[(&str, &str)] = &[
    ("mem_profiler why --cgroup /app", GROUP),
    (
        "mem_profiler push --to pyroscope http://127.0.0.1:4040 --every 15s --label service_name=checkout --label zone=eu -p checkoutd",
        PUSH,
    ),
    (
        "mem_profiler push --to otlp http://127.0.0.1:4318 --dumps x.heap",
        PUSH,
    ),
    (
        "mem_profiler -s 60 -p checkoutd --push http://127.0.0.1:4040 --to pyroscope",
        PUSH,
    ),
    (
        "clickhouse-client --queries-file deploy/clickhouse/schema.sql",
        CLICKHOUSE,
    ),
    (
        "mem_parser x.heap --clickhouse --label service=checkout --label host=web-17 --label version=1.2 | clickhouse-client --query 'INSERT INTO mem_profiler.rows FORMAT TSV'",
        CLICKHOUSE,
    ),
    (
        r#"cat rows/*.tsv | awk -F'\t' -v OFS='\t' 'seen[$11]++ { for (i = 13; i <= 17; i++) $i = "[]" } 1' > all.tsv"#,
        CLICKHOUSE,
    ),
    (
        "clickhouse-client --param_service=checkout --param_hours=1 --queries-file deploy/clickhouse/queries/01-hosts-that-grew.sql",
        CLICKHOUSE,
    ),
    ("deploy/build", PACKAGE),
    ("mem_profiler serve", SERVED),
    (
        "go tool pprof -top http://127.0.0.1:4040/p/redis-server/debug/pprof/heap",
        SERVED,
    ),
    (
        "google-pprof --text http://127.0.0.1:4040/p/redis-server/pprof/heap",
        SERVED,
    ),
    (
        "curl -s -X POST -H 'X-Mem-Profiler: 1' 'http://127.0.0.1:4040/api/start?name=redis-server&interval=4096&seconds=60'",
        SERVED,
    ),
    ("curl -s http://127.0.0.1:4040/metrics", SERVED),
    ("dpkg -i mem-profiler-0.1.0-aarch64.deb", PACKAGE),
    (
        "mem_profiler top -p server",
        "takes keys from a terminal: controller/tests/views.rs has one",
    ),
    (
        "docker run -v /usr/local/lib/libmem_agent.so:/opt/libmem_agent.so:ro -e LD_PRELOAD=/opt/libmem_agent.so IMAGE",
        "needs a container daemon; tests/crossing.rs has processes in other namespaces",
    ),
    (
        "scp mem-profiler-0.1.0-aarch64.tar.xz root@board:/opt/",
        LINE,
    ),
    ("cp mem-profiler-0.1.0-aarch64.tar.xz /media/usb/", LINE),
    ("base64 mem-profiler.tar.gz > /dev/ttyUSB0", LINE),
    (
        "stty -echo; base64 -d > /opt/mem-profiler.tar.gz; stty echo",
        LINE,
    ),
    (
        "mem_profiler -s 60 -c 1 -p server -o prof_ &",
        "a session that this test begins by itself",
    ),
    ("mem_profiler go -p prometheus -o /tmp/go_", GO),
    ("mem_parser /tmp/go_prometheus.9912.0001.heap", GO),
    ("mem_profiler run --leak-check -- ./app", LEAKS),
    (
        "mem_profiler leaks -p server --exit-code",
        "exits with 1: tests/tests/leak_check.rs does it",
    ),
    ("mem_profiler run -c 1 -o /tmp/p_ -- ./app", MIGRATION),
    (
        "mem_profiler run --leak-check -o /tmp/p_ -- ./app",
        MIGRATION,
    ),
    ("mem_profiler cpu run -F 100 -o /tmp/p_ -- ./app", MIGRATION),
    (
        "mem_profiler cpu run --engine timers -- python3 app.py",
        "tests/tests/cpu_python.rs does it",
    ),
    ("mem_profiler run --leak-check=draconian -- ./app", LEAKS),
    ("docs/hunt/install /tmp/hunt cpp && cd /tmp/hunt", HUNT),
    (
        "LD_PRELOAD=/usr/local/lib/libmem_agent.so ./aria2c --enable-rpc --rpc-listen-port=6801 --pause=true --no-conf -q &",
        HUNT,
    ),
    (
        "~/mem-profiler/docs/hunt/queue_downloads.py 6801 1000000 200 &",
        HUNT,
    ),
    ("ps -C aria2c -o rss=", HUNT),
    ("mem_profiler -s 20 --every 4s -o aria2_ -p aria2c", HUNT),
    ("mem_parser --leaks -n 1 aria2_*.heap", HUNT),
    (
        "LD_PRELOAD=/usr/local/lib/libmem_agent.so venv/bin/python ~/mem-profiler/docs/hunt/worker.py 1000000 100 &",
        HUNT,
    ),
    (
        "mem_profiler -s 10 --every 2s -o worker_ -p 'python3*'",
        HUNT,
    ),
    ("mem_parser --leaks -n 1 worker_*.heap", HUNT),
    (
        "LD_PRELOAD=/usr/local/lib/libmem_agent.so PYTHONMALLOC=malloc python3 ~/mem-profiler/docs/hunt/trainer.py &",
        TRAINER,
    ),
    (
        "mem_profiler -s 10 --every 2s -o train_ -p 'python3*'",
        TRAINER,
    ),
    ("mem_parser --leaks -n 1 train_*.heap", TRAINER),
    ("mem_profiler leaks -p 'python3*'", HUNT),
    (
        "LD_PRELOAD=/usr/local/lib/libmem_agent.so ./mini-redis-server --port 6805 &",
        HUNT,
    ),
    (
        "~/mem-profiler/docs/hunt/subscribe.py 6805 1000000 100 &",
        HUNT,
    ),
    (
        "mem_profiler -s 10 --every 2s -o redis_ -p mini-redis-server",
        HUNT,
    ),
    ("mem_parser --leaks -n 1 redis_*.heap", HUNT),
];
