"""The suites: where they come from, what of them is run, and how their results are read."""

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import machine
import results

HERE = Path(__file__).resolve().parent


@dataclass
class Piece:
    """One command of a suite, with results of its own."""

    name: str
    command: list
    directory: Path
    read: object
    environment: dict = field(default_factory=dict)
    # How long it may take without the agent.
    seconds: int = 120


@dataclass
class Suite:
    """A suite. `prepare` gets the run's directory and sources; `list` gives its pieces."""

    name: str
    title: str
    packages: list
    prepare: object
    list: object
    quick: bool = True
    place: Path = None

    def pieces(self, quick):
        return self.list(self.place, quick)


def clean_environment(work):
    """What programs under test see, whoever runs them."""
    return {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8",
            "HOME": str(work.path / "home"), "TMPDIR": str(work.path / "tmp")}


def prepare(chosen, work):
    """Fetches and builds what the chosen suites need, then gives it to the ordinary user."""
    downloads = work.path / "downloads"
    for part in (downloads, work.path / "home", work.path / "tmp"):
        part.mkdir()
    sources = machine.Sources(downloads)
    for suite in chosen:
        place = work.path / suite.name
        suite.place = suite.prepare(sources, place) or place
    if not os.getuid():
        subprocess.run(["chown", "-R", f"{machine.NOBODY}:{machine.NOBODY}",
                        *[p for p in work.path.iterdir() if p.is_dir()]], check=True)


def run(*command, **options):
    """A step of a preparation."""
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, **options)
    if done.returncode:
        machine.fail(f"{' '.join(map(str, command))}:\n{done.stdout[-2000:]}")


def unpack(package):
    """A suite that is used as it is published."""
    return lambda sources, place: sources.unpack(package, place)


def empty(_, place):
    """A suite that comes with an installed package."""
    place.mkdir()


# ---- CPython

PYTHON_QUICK = """test_dict test_list test_bytes test_re test_json test_zlib test_array test_mmap
test_ctypes test_thread test_fork1 test_weakref test_gc test_pickle
test_functools test_memoryview test_posix test_xml_etree_c""".split()

PYTHON_FULL = PYTHON_QUICK + """test_subprocess test_asyncgen test_ast test_audit test_base64 test_bigmem
test_binascii test_bisect test_buffer test_builtin test_bz2 test_calendar test_call test_capi
test_class test_cmath test_cmd_line test_code test_codecs test_collections test_compile
test_complex test_configparser test_context test_contextlib test_copy test_copyreg
test_coroutines test_csv test_dataclasses test_datetime test_decimal test_deque test_descr
test_dictviews test_difflib test_doctest test_dynamic test_enum test_exceptions test_faulthandler
test_fcntl test_file test_fileio test_float test_format test_fractions test_frame test_fstring
test_generators test_glob test_grammar test_graphlib test_gzip test_hash test_hashlib test_heapq
test_hmac test_html test_import test_importlib test_inspect test_int test_io test_ioctl
test_itertools test_iter test_long test_lzma test_marshal test_math test_memoryio
test_multiprocessing_fork test_concurrent_futures test_operator test_ordered_dict test_os
test_pathlib test_poll test_pty test_queue test_random test_range test_resource test_richcmp
test_sched test_select test_selectors test_set test_shelve test_shlex test_shutil test_signal
test_slice test_sort test_stat test_statistics test_str test_strftime test_string test_struct
test_structseq test_super test_symtable test_syntax test_sys test_tarfile test_tempfile
test_textwrap test_threading test_threading_local test_time test_timeit test_tokenize
test_traceback test_tracemalloc test_tuple test_types test_typing test_ucn test_unicode
test_unicodedata test_unittest test_unpack test_userdict test_uuid test_wait3 test_wait4 test_weakset
test_with test_xml_etree test_xmlrpc test_zipfile test_zipimport test_asyncio""".split()


def python(place, quick):
    def piece(module):
        # Every object's memory through malloc.
        script = ('rm -rf "$1"; mkdir "$1"; python3.11 -m test -q --junit-xml "$1/results" "$2" >"$1/log" 2>&1; '
                  'code=$?; cat "$1/results"; exit $code')
        return Piece(module, ["sh", "-c", script, "sh", str(place / module), module], place,
                     results.junit, {"PYTHONMALLOC": "malloc"}, 300)
    return [piece(module) for module in (PYTHON_QUICK if quick else PYTHON_FULL)]


# ---- perl

def prepare_perl(sources, place):
    source = sources.unpack("perl", place)
    # The tests of the core expect to lie beside a build: the installed perl stands for it.
    library = source / "lib"
    for installed in ("/usr/share/perl/5.36", "/usr/lib/x86_64-linux-gnu/perl/5.36",
                      "/usr/lib/x86_64-linux-gnu/perl-base"):
        installed = Path(installed.replace("x86_64", os.uname().machine))
        shutil.copytree(installed, library, dirs_exist_ok=True)
    for at in (source, source / "t"):
        (at / "perl").symlink_to("/usr/bin/perl")
    return source


PERL_QUICK = ["base/*.t", "cmd/*.t", "op/a*.t", "op/f*.t", "op/h*.t", "op/sp*.t", "re/reg_*.t"]
PERL_FULL = ["base/*.t", "cmd/*.t", "comp/*.t", "io/*.t", "mro/*.t", "op/*.t", "re/*.t", "uni/*.t"]


def perl(place, quick):
    files = [f for pattern in (PERL_QUICK if quick else PERL_FULL) for f in (place / "t").glob(pattern)]
    # Watches CPU time by alarms that a slower run misses; waits for a terminal.
    files = [f for f in files if f.name not in ("alarm.t", "time.t", "time_loop.t", "sleep.t")]

    def piece(file):
        name = str(file.relative_to(place / "t"))
        return Piece(name, ["./perl", name], place / "t", results.tap)
    return [piece(file) for file in sorted(files)]


# ---- Tcl

TCL_QUICK = """append apply assemble binary compile dict encoding expr format interp list lsearch
namespace obj parse proc string stringObj thread trace utf var""".split()


def tcl(place, quick):
    tests = place / "tests"
    leave_out = {"all", "httpold", "http", "http11", "httpPipeline", "socket", "winPipe", "tcltest", "clock"}
    names = TCL_QUICK if quick else sorted(f.stem for f in tests.glob("*.test"))

    def piece(name):
        scratch = place / "scratch" / name
        script = 'rm -rf "$1"; mkdir -p "$1"; exec tclsh8.6 "$2" -verbose "pass skip" -tmpdir "$1"'
        return Piece(name, ["sh", "-c", script, "sh", str(scratch), f"{name}.test"], tests, results.tcl)
    return [piece(name) for name in names if name not in leave_out]


# ---- redis

REDIS_QUICK = ["unit/type/hash", "unit/type/set", "unit/type/string", "unit/type/incr", "unit/keyspace",
               "unit/dump"]
REDIS_FULL = REDIS_QUICK + ["unit/hyperloglog", "unit/type/list", "unit/type/zset", "unit/type/stream", "unit/sort", "unit/expire",
                            "unit/scan", "unit/multi", "unit/scripting", "unit/functions", "unit/bitops",
                            "unit/geo", "unit/pubsub", "unit/auth", "unit/protocol", "unit/quit",
                            "integration/aof", "integration/rdb", "integration/replication-2",
                            "unit/obuf-limits", "unit/tracking"]


def prepare_redis(sources, place):
    source = sources.unpack("redis", place)
    for tool in ("server", "cli", "benchmark", "check-aof", "check-rdb"):
        (source / "src" / f"redis-{tool}").symlink_to(f"/usr/bin/redis-{tool}")
    (source / "src" / "redis-sentinel").symlink_to("/usr/bin/redis-server")
    return source


def redis(place, quick):
    def piece(at, unit):
        # Pieces side by side: ports and directories of their own.
        copy = place.parent / f"copy{at}"
        script = ('[ -d "$1" ] || cp -a "$2" "$1"; cd "$1" && exec ./runtest --clients 1 --baseport "$3" '
                  '--portcount 200 --single "$4"')
        command = ["sh", "-c", script, "sh", str(copy), str(place), str(21000 + 300 * at), unit]
        return Piece(unit, command, place, results.redis, seconds=240)
    return [piece(at, unit) for at, unit in enumerate(REDIS_QUICK if quick else REDIS_FULL)]


# ---- PHP

PHP_QUICK = ["Zend/tests/closures", "Zend/tests/generators"]
PHP_FULL = PHP_QUICK + [f"Zend/tests/{part}" for part in (
    "arg_unpack", "array_unpack", "arrow_functions", "assert", "attributes", "constant_expressions",
    "enum", "exceptions", "fibers", "first_class_callable", "list", "magic_methods", "match",
    "named_params", "namespaces", "nullsafe", "object_handlers", "readonly_props", "return_types",
    "static_variables", "str_offset", "traits", "try", "typehints", "type_declarations", "weakrefs")] + [
    "ext/standard/tests/array", "ext/standard/tests/strings", "ext/spl/tests", "ext/pcre/tests", "ext/json/tests"]


def php(place, quick):
    def piece(part):
        listing = place.parent / part.replace("/", "-")
        # Each object's memory through malloc.
        script = ('php run-tests.php -q -j1 -W "$1" "$2" >/dev/null 2>&1; code=$?; cat "$1"; '
                  'rm -f "$1"; exit $code')
        environment = {"TEST_PHP_EXECUTABLE": "/usr/bin/php", "USE_ZEND_ALLOC": "0", "NO_INTERACTION": "1",
                       "SKIP_ONLINE_TESTS": "1", "SKIP_SLOW_TESTS": "1"}
        return Piece(part, ["sh", "-c", script, "sh", str(listing), part], place, results.php, environment, 600)
    parts = PHP_QUICK if quick else PHP_FULL
    return [piece(part) for part in parts if (place / part).is_dir()]


# ---- Ruby

RUBY_QUICK = ["hash", "string", "gc", "proc", "fiber"]
RUBY_FULL = RUBY_QUICK + ["array", "bignum", "class", "enumerator", "exception", "file", "float", "integer", "io",
                          "iterator", "lazy_enumerator", "m17n", "marshal", "method", "module", "object",
                          "objectspace", "pack", "process", "range", "regexp", "set", "signal", "sprintf",
                          "struct", "symbol", "system", "thread", "thread_queue", "time", "transcode",
                          "weakmap"]


def ruby(place, quick):
    def piece(name):
        command = ["ruby", "-I", "tool/lib", "test/runner.rb", "-v", f"test/ruby/test_{name}.rb"]
        return Piece(name, command, place, results.ruby, seconds=300)
    names = RUBY_QUICK if quick else RUBY_FULL
    return [piece(name) for name in names if (place / f"test/ruby/test_{name}.rb").exists()]


# ---- git

def prepare_git(sources, place):
    source = sources.unpack("git", place)
    options = ["NO_CURL=1", "NO_GETTEXT=1", "NO_PERL=1", "NO_PYTHON=1", "NO_TCLTK=1", "NO_EXPAT=1", "NO_OPENSSL=1"]
    run("make", "-j", str(os.cpu_count()), *options, "CFLAGS=-O1", cwd=source)
    return source


GIT_FULL = """t0000 t0001 t0008 t0021 t0027 t1006 t1300 t1400 t1450 t2000 t2020 t3000 t3200 t3400 t3404 t3600
t3701 t3903 t4001 t4013 t4014 t4202 t5300 t5304 t5310 t5500 t5510 t5601 t6000 t6030 t6120 t6300 t7001 t7004
t7063 t7400 t7500 t7600 t7800""".split()


def git(place, _):
    files = [f for name in GIT_FULL for f in sorted((place / "t").glob(f"{name}-*.sh"))]

    def piece(file):
        return Piece(file.name, [f"./{file.name}", "--root", str(place / "trash" / file.stem)],
                     place / "t", results.tap, seconds=300)
    (place / "trash").mkdir(exist_ok=True)
    (place / "trash").chmod(0o1777)
    return [piece(file) for file in files]


# ---- gcc's torture tests

def prepare_torture(_, place):
    place.mkdir()
    run("tar", "-xf", str(next(Path("/usr/src").glob("gcc-12/gcc-12*.tar.xz"))), "-C", str(place),
        "--wildcards", "*/gcc.c-torture/execute/*.c", "--strip-components=4")
    (place / "objects").mkdir()


def torture(place, _):
    # Every eighth: compiled at two levels and run, in pieces of twenty.
    files = sorted((place / "execute").glob("*.c"))[::8]

    def piece(at):
        command = ["sh", str(HERE / "torture"), str(place / "objects" / str(at)), *map(str, files[at:at + 20])]
        return Piece(f"from {files[at].name}", command, place, results.lines, seconds=120)
    return [piece(at) for at in range(0, len(files), 20)]


# ---- stress-ng

STRESSORS = ["malloc", "fork", "vfork", "pthread", "clone", "exec", "stack", "mmap"]


# These have no end of their own in good time.
STRESS_SECONDS = {"stack": 3, "mmap": 3, "exec": 3}
STRESS_OPS = {"malloc": 40000, "fork": 400, "vfork": 1500, "pthread": 1500, "clone": 400}


def stress(place, quick):
    def piece(name):
        if name in STRESS_OPS:
            amount = [f"--{name}-ops", str(STRESS_OPS[name] // (4 if quick else 1)), "--timeout", "60"]
        else:
            amount = ["--timeout", str(STRESS_SECONDS[name] * (1 if quick else 4))]
        command = ["stress-ng", "--verify", "--oomable", "--temp-path", str(place), "--mmap-bytes", "8m",
                   f"--{name}", "1", *amount]
        # Its results are its complaints; one line says that there is a test.
        return Piece(name, command, place, lambda text: with_line(results.stress(text), text))
    return [piece(name) for name in STRESSORS]


def with_line(found, text):
    """Notes whether stress-ng says that all went well."""
    found["(successful run)"] = str("successful run completed" in text)
    return found


# ---- real programs, one for each runtime

def prepare_programs(_, place):
    shutil.copytree(HERE / "programs", place)
    run("javac", "-d", ".", "Churn.java", cwd=place)
    cache = {"GOCACHE": str(place / "cache"), "GOFLAGS": "-mod=mod"}
    run("go", "build", "-o", "churn-go", "churn.go", cwd=place, env=os.environ | cache)


def programs(place, _):
    commands = {"node": ["node", "churn.js"], "java": ["java", "-Xmx256m", "Churn"], "go": ["./churn-go"],
                "php": ["php", "-d", "memory_limit=512M", "churn.php"], "ruby": ["ruby", "churn.rb"]}
    return [Piece(name, command, place, results.lines) for name, command in commands.items()]


# ---- Go's own tests of cgo

def prepare_cgo(_, place):
    shutil.copytree(next(Path("/usr/share").glob("go-1.*/misc/cgo/test")), place)
    environment = os.environ | {"GOCACHE": str(place / "cache"), "GOFLAGS": "-mod=mod"}
    (place / "go.mod").write_text("module misc/cgo/test\n\ngo 1.19\n")
    run("go", "test", "-c", "-o", "cgo.test", ".", cwd=place, env=environment)


def cgo(place, _):
    return [Piece("misc/cgo/test", ["./cgo.test", "-test.v", "-test.short"], place, results.go)]


# ---- PostgreSQL's regression tests

POSTGRES = Path("/usr/lib/postgresql/15")


def prepare_postgres(sources, place):
    source = sources.unpack("postgresql-15", place)
    tests = source / "src/test/regress"
    headers = subprocess.run([POSTGRES / "bin/pg_config", "--includedir-server"], text=True, check=True,
                             stdout=subprocess.PIPE).stdout.strip()
    run("gcc", "-O2", "-w", "-shared", "-fPIC", "-I", headers, "-I", str(tests), "-o", str(tests / "regress.so"),
        str(tests / "regress.c"))
    return source


def postgres(place, _):
    # A server of its own, which listens on a socket in a directory of its own.
    tests, out = place / "src/test/regress", place.parent / "instance"
    command = ["sh", "-c", 'rm -rf "$1"; mkdir "$1"; shift; exec "$@"', "sh", str(out),
               str(POSTGRES / "lib/pgxs/src/test/regress/pg_regress"), f"--inputdir={tests}", f"--outputdir={out}",
               f"--bindir={POSTGRES}/bin", f"--dlpath={tests}", f"--temp-instance={out}/data",
               "--max-connections=5", f"--schedule={tests}/parallel_schedule"]
    return [Piece("parallel_schedule", command, place, results.postgres, seconds=600)]


# ---- glibc's tests of malloc

# What its support library is compiled with, in the place of the build's own headers.
GLIBC_DEFINES = {"TIMEOUTFACTOR": "2", "MODULE_NAME": "testsuite"} | {
    name: '"/nonexistent"' for name in (
        "SRCDIR_PATH OBJDIR_PATH OBJDIR_ELF_LDSO_PATH INSTDIR_PATH LIBDIR_PATH SLIBDIR_PATH BINDIR_PATH SBINDIR_PATH "
        "ROOTSBINDIR_PATH COMPLOCALEDIR_PATH SYSCONFDIR_PATH").split()}
# Of these, glibc's build makes programs of several sources; they define `malloc` themselves.
GLIBC_PARTS = "tst-interpose"


def prepare_glibc(sources, place):
    source = sources.unpack("glibc", place)
    headers, programs, objects = (place / part for part in ("headers", "programs", "objects"))
    for part in (headers, programs, objects):
        part.mkdir()
    for directory in ("support", "malloc"):
        (headers / directory).symlink_to(source / directory)
    for header in ("include/libc-diag.h", "include/array_length.h", "sysdeps/generic/malloc-size.h",
                   "sysdeps/generic/malloc-alignment.h"):
        if (source / header).exists():
            shutil.copy(source / header, headers)
    flags = ["-O2", "-w", "-D_GNU_SOURCE", "-I", str(headers), "-I", str(source / "support"), "-include", "stddef.h",
             "-include", "limits.h", *[f"-D{name}={value}" for name, value in GLIBC_DEFINES.items()]]
    # What needs more of the library's own headers is not needed by these tests.
    compiled = [file for file in sorted((source / "support").glob("*.c"))
                if not file.name.startswith(("tst-", "test-", "README"))
                and subprocess.run(["gcc", *flags, "-c", str(file), "-o", str(objects / f"{file.stem}.o")],
                                   stderr=subprocess.DEVNULL).returncode == 0
                and b"main" not in defined(objects / f"{file.stem}.o")]
    run("ar", "rc", str(place / "support.a"), *[str(objects / f"{file.stem}.o") for file in compiled])
    for file in sorted((source / "malloc").glob("tst-*.c")):
        subprocess.run(["gcc", *flags, "-fno-builtin", "-o", str(programs / file.stem), str(file),
                        str(place / "support.a"), "-lpthread", "-ldl"], stderr=subprocess.DEVNULL, check=False)
    tests = {file.stem for file in (source / "malloc").glob("tst-*.c") if not file.name.startswith(GLIBC_PARTS)}
    missing = sorted(tests - {program.name for program in programs.iterdir()})
    print(f"glibc: {len(tests) - len(missing)} of {len(tests)} tests; these need the library's own build: "
          f"{' '.join(missing)}", flush=True)
    if len(tests) - len(missing) < 30:
        machine.fail("too few of glibc's tests could be compiled")
    return programs


def defined(file):
    """Names of the functions that an object file defines."""
    listing = subprocess.run(["nm", "--defined-only", str(file)], stdout=subprocess.PIPE, check=True).stdout
    return {line.split()[-1] for line in listing.splitlines() if line.split()}


def glibc(place, _):
    return [Piece(file.name, ["sh", "-c", 'timeout 200 "$0"; echo "result: $?"', str(file)], place, results.exit_code,
                  seconds=220)
            for file in sorted(place.iterdir()) if not file.name.startswith(GLIBC_PARTS)]


# ---- whatever else is in foreign.d

def prepare_others(_, place):
    place.mkdir()
    for program in sorted((HERE / "foreign.d").glob("[a-z]*")):
        (place / program.name).mkdir()
        run(str(program), "prepare", str(place / program.name))


def others(place, _):
    return [Piece(at.name, [str(HERE / "foreign.d" / at.name), "run", str(at)], at, results.tap, seconds=300)
            for at in sorted(place.iterdir())]


def others_present():
    return any((HERE / "foreign.d").glob("[a-z]*"))


ALL = [
    Suite("python", "CPython 3.11", ["python3", "libpython3.11-testsuite"], empty, python),
    Suite("perl", "perl 5.36", ["perl"], prepare_perl, perl),
    Suite("tcl", "Tcl 8.6", ["tcl8.6"], unpack("tcl8.6"), tcl),
    Suite("redis", "redis 7.0", ["redis-server", "redis-tools", "tcl8.6", "procps"], prepare_redis, redis),
    Suite("php", "PHP 8.2", ["php-cli"], unpack("php8.2"), php),
    Suite("ruby", "Ruby 3.1", ["ruby"], unpack("ruby3.1"), ruby),
    Suite("git", "git 2.39", ["gcc", "make", "libc6-dev", "zlib1g-dev"], prepare_git, git, quick=False),
    Suite("torture", "gcc 12's torture tests", ["gcc-12", "gcc", "libc6-dev", "gcc-12-source"], prepare_torture,
          torture, quick=False),
    Suite("stress-ng", "stress-ng --verify", ["stress-ng"], empty, stress),
    Suite("programs", "Node.js, Java, Go, PHP, Ruby programs",
          ["nodejs", "openjdk-17-jdk-headless", "golang-go", "gcc", "libc6-dev", "php-cli", "ruby"],
          prepare_programs, programs),
    Suite("postgres", "PostgreSQL 15", ["postgresql-15", "postgresql-server-dev-15", "gcc", "libc6-dev", "bzip2"],
          prepare_postgres, postgres, quick=False),
    Suite("glibc", "glibc 2.36's tests of malloc", ["gcc", "libc6-dev", "binutils"], prepare_glibc, glibc, quick=False),
    Suite("cgo", "Go's cgo tests", ["golang-go", "golang-src", "gcc", "libc6-dev"], prepare_cgo, cgo),
]
if others_present():
    ALL.append(Suite("others", "others", [], prepare_others, others))
