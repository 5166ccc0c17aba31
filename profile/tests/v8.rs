//! Profiles of V8: `.cpuprofile` and `.heapprofile`.

use profile::{Format, Profile, read};

/// What node 20 writes, shortened: two functions of a script, one of node, and V8's own.
const CPU: &str = r#"{"nodes":[
{"id":1,"callFrame":{"functionName":"(root)","scriptId":"0","url":"","lineNumber":-1,"columnNumber":-1},"hitCount":0,"children":[2,3]},
{"id":2,"callFrame":{"functionName":"(idle)","scriptId":"0","url":"","lineNumber":-1,"columnNumber":-1},"hitCount":1},
{"id":3,"callFrame":{"functionName":"","scriptId":"80","url":"node:internal/main/run_main_module","lineNumber":0,"columnNumber":0},"hitCount":0,"children":[4]},
{"id":4,"callFrame":{"functionName":"load","scriptId":"81","url":"file:///srv/my%20app.js","lineNumber":6,"columnNumber":12},"hitCount":2,"children":[5],"positionTicks":[{"line":7,"ticks":2}]},
{"id":5,"callFrame":{"functionName":"pars\u00e9","scriptId":"81","url":"file:///srv/my%20app.js","lineNumber":1,"columnNumber":9},"hitCount":1}],
"startTime":1000,"endTime":2000,"samples":[4,5,4,2],"timeDeltas":[100,250,250,300]}"#;

/// What node 20 writes with `--heap-prof`, shortened.
const HEAP: &str = r#"{"head":{"callFrame":{"functionName":"(root)","scriptId":"0","url":"","lineNumber":-1,"columnNumber":-1},"selfSize":0,"id":1,"children":[
{"callFrame":{"functionName":"load","scriptId":"81","url":"/srv/app.js","lineNumber":6,"columnNumber":12},"selfSize":1024,"id":2,"children":[
{"callFrame":{"functionName":"parse","scriptId":"81","url":"/srv/app.js","lineNumber":1,"columnNumber":9},"selfSize":4096,"id":3,"children":[]}]},
{"callFrame":{"functionName":"(GC)","scriptId":"0","url":"","lineNumber":-1,"columnNumber":-1},"selfSize":0,"id":4,"children":[]}]},
"samples":[{"size":4096,"nodeId":3,"ordinal":2},{"size":1024,"nodeId":2,"ordinal":1}]}"#;

fn profile(text: &str) -> Profile {
    read(text.as_bytes(), "x").unwrap_or_else(|error| panic!("{error}: {text:.300}"))
}

fn error(text: &str) -> String {
    match read(text.as_bytes(), "x.cpuprofile") {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{text:.300}"),
    }
}

/// Returns the stacks with their values as lines of text, innermost function first.
fn stacks(profile: &Profile) -> Vec<String> {
    let name = |&frame: &u32| {
        let location = &profile.locations[frame as usize];
        let line = profile.lines_of(location)[0];
        let function = &profile.functions[line.function as usize];
        let (file, first) = (&function.file, function.start_line);
        format!("{} {file}:{first}", function.name)
    };
    let numbers = 0..profile.stacks.len();
    let lines = numbers.map(|stack| {
        let frames: Vec<String> = profile.stacks.get(stack).iter().map(name).collect();
        format!("{} {:?}", frames.join(" < "), profile.values_of(stack))
    });
    lines.collect()
}

fn types(profile: &Profile) -> Vec<String> {
    let types = profile.sample_types.iter();
    types.map(|t| format!("{}/{}", t.kind, t.unit)).collect()
}

#[test]
fn cpu_profiles_have_samples_and_the_time_up_to_the_next_one() {
    let read = profile(CPU);
    assert_eq!(read.format, Format::V8);
    assert_eq!(types(&read), ["samples/count", "wall/nanoseconds"]);
    assert_eq!(read.default_type, 1);
    assert_eq!(read.facts.duration_ns, Some(1_000_000));
    // Samples at 1100, 1350, 1600 and 1900 µs.
    let main = "(anonymous) node:internal/main/run_main_module:1";
    let load = "load /srv/my app.js:7";
    let expected = [
        "(idle) :0 [1, 100000]".to_owned(),
        format!("{load} < {main} [2, 550000]"),
        format!("parsé /srv/my app.js:2 < {load} < {main} [1, 250000]"),
    ];
    assert_eq!(stacks(&read), expected);
}

#[test]
fn heap_profiles_have_bytes() {
    let read = profile(HEAP);
    assert_eq!(types(&read), ["inuse_space/bytes"]);
    assert!(read.is_memory_profile());
    let expected = [
        "load /srv/app.js:7 [1024]",
        "parse /srv/app.js:2 < load /srv/app.js:7 [4096]",
    ];
    assert_eq!(stacks(&read), expected);
}

#[test]
fn nodes_may_name_their_parent_and_samples_may_be_out_of_order() {
    let frame = |name: &str| format!("\"callFrame\":{{\"functionName\":\"{name}\"}}");
    let text = format!(
        "{{\"id\":7,\"result\":{{\"profile\":{{\"endTime\":130,\"startTime\":100,\"timeDeltas\":[20,-10],\
         \"samples\":[9,8],\"nodes\":[{{\"id\":9,\"parent\":8,{}}},{{\"id\":8,{}}}]}}}}}}",
        frame("inner"),
        frame("outer")
    );
    // Samples at 120 and 110 µs.
    let expected = ["inner :0 < outer :0 [1, 10000]", "outer :0 [1, 10000]"];
    assert_eq!(stacks(&profile(&text)), expected);
}

#[test]
fn without_samples_the_hits_of_nodes_are_counted() {
    let start = CPU.find("\"startTime\"").unwrap();
    let text = format!("{}\"title\":\"x\"}}", &CPU[..start]);
    let read = profile(&text);
    assert_eq!(types(&read), ["samples/count"]);
    let counts: i64 = (0..read.stacks.len()).map(|at| read.values_of(at)[0]).sum();
    assert_eq!(counts, 4);
}

#[test]
fn files_that_are_cut_off_or_damaged_are_refused() {
    for text in [CPU, HEAP] {
        let recognised = text.find("callFrame").unwrap() + 11;
        for end in recognised..text.len() {
            let Some(cut) = text.get(..end) else { continue };
            let message = error(cut);
            let is_told = message.contains("ends in the middle") || message.contains("at byte");
            assert!(is_told, "{message}");
        }
    }
    let unknown = CPU.replace("\"samples\":[4", "\"samples\":[44");
    assert!(error(&unknown).contains("refers to node 44"));
    let circle = CPU.replace("\"hitCount\":1}]", "\"hitCount\":1,\"children\":[4]}]");
    assert!(error(&circle).contains("more than 1024 frames"));
    assert!(error(r#"{"nodes":[],"x":"","callFrame":1}"#).contains("no calls"));
    let other = r#"{"traceEvents":[{"ph":"X","args":{"data":{"nodes":[{"callFrame":{}}]}}}]}"#;
    assert!(error(other).contains("is a trace for Chrome"));
}

/// Uses trees whose stacks have far more frames together than the text has bytes.
#[test]
fn deep_and_bushy_trees_are_refused_quickly() {
    let node = r#"{"callFrame":{"functionName":"f"},"selfSize":1,"children":["#;
    let deep = format!("{{\"head\":{}", node.repeat(1 << 18));
    assert!(error(&deep).contains("more than 1024 frames"));
    let mut bushy = format!("{{\"head\":{}", node.repeat(1000));
    bushy += &r#"{"selfSize":1},"#.repeat(100_000);
    bushy += &"]}".repeat(1000);
    bushy += "}";
    assert!(error(&bushy).contains("more frames than a file of its size"));
}
