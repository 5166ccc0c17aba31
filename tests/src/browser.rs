//! Headless Chromium, driven over a pipe by the DevTools protocol: pages are used as they are
//! served, with their policies.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::wait;

/// A browser with one page.
pub struct Browser {
    child: Child,
    to: File,
    from: BufReader<File>,
    next: u64,
    session: Value,
    _home: tempfile::TempDir,
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: the array has room for two descriptors, which are ours after the call.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    }
}

impl Browser {
    /// Opens a page.
    pub fn open(url: &str) -> Self {
        let home = tempfile::tempdir().expect("a directory for the browser's profile");
        let (theirs_in, to) = pipe();
        let (from, theirs_out) = pipe();
        let (read, write) = (theirs_in.as_raw_fd(), theirs_out.as_raw_fd());
        let mut command = Command::new("chromium");
        command
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                // WebGL without a graphics card, for speedscope.
                "--enable-unsafe-swiftshader",
                "--disable-dev-shm-usage",
            ])
            .args([
                "--no-first-run",
                "--disable-background-networking",
                "--disable-extensions",
            ])
            .args([
                "--disable-sync",
                "--disable-breakpad",
                "--password-store=basic",
            ])
            .args([
                "--window-size=1200,800",
                "--remote-debugging-pipe",
                "about:blank",
            ])
            .arg(format!("--user-data-dir={}", home.path().display()))
            .env("HOME", home.path())
            .env_remove("DISPLAY")
            .env_remove("DBUS_SESSION_BUS_ADDRESS")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: dup2 alone, which is async-signal-safe. First out of the way of 3 and 4.
        unsafe {
            command.pre_exec(move || {
                let read = libc::fcntl(read, libc::F_DUPFD_CLOEXEC, 10);
                let write = libc::fcntl(write, libc::F_DUPFD_CLOEXEC, 10);
                if libc::dup2(read, 3) == 3 && libc::dup2(write, 4) == 4 {
                    Ok(())
                } else {
                    Err(std::io::Error::last_os_error())
                }
            });
        }
        let child = command.spawn().expect("chromium must be installed");
        drop((theirs_in, theirs_out));
        let mut browser = Self {
            child,
            to: to.into(),
            from: BufReader::new(from.into()),
            next: 0,
            session: Value::Null,
            _home: home,
        };
        let target = browser.call("Target.createTarget", json!({ "url": url }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session = browser.call("Target.attachToTarget", attach)["sessionId"].clone();
        browser
    }

    /// Runs a command of the protocol. Returns its result.
    fn call(&mut self, method: &str, params: Value) -> Value {
        let answer = self.answer(method, params);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Runs a command of the protocol. Returns the whole answer.
    fn answer(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": params });
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        write!(self.to, "{message}\0").expect("the browser listens");
        loop {
            let mut answer = Vec::new();
            let read = self
                .from
                .read_until(0, &mut answer)
                .expect("the browser's pipe");
            assert!(read > 0, "the browser has ended");
            answer.pop();
            let answer: Value = serde_json::from_slice(&answer).expect("JSON");
            // Other messages are events.
            if answer["id"] == self.next {
                return answer;
            }
        }
    }

    /// Returns the value of an expression on the page; `null` if it throws, or if the page is left
    /// before it is evaluated.
    pub fn value(&mut self, expression: &str) -> Value {
        const METHOD: &str = "Runtime.evaluate";
        let params = json!({ "expression": expression, "returnByValue": true });
        let answer = self.answer(METHOD, params);
        let error = answer["error"]["message"].as_str();
        let is_left = error.is_some_and(|message| message.contains("navigated"));
        assert!(error.is_none() || is_left, "{METHOD}: {answer}");
        let result = &answer["result"];
        if is_left {
            Value::Null
        } else if result["exceptionDetails"].is_null() {
            result["result"]["value"].clone()
        } else {
            Value::Null
        }
    }

    /// Returns the value with which a promise on the page is fulfilled. Panics if it is rejected.
    pub fn promised(&mut self, expression: &str) -> Value {
        let params =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{result}");
        result["result"]["value"].clone()
    }

    /// Begins to count the CPU time of the page's thread.
    pub fn count_work(&mut self) {
        self.call("Performance.enable", json!({ "timeDomain": "threadTicks" }));
    }

    /// Returns the CPU time of the page's thread so far, in ms, after [`Browser::count_work`].
    pub fn worked_ms(&mut self) -> f64 {
        let metrics = self.call("Performance.getMetrics", json!({}));
        let metrics = metrics["metrics"].as_array().expect("metrics").clone();
        let task = metrics.iter().find(|one| one["name"] == "TaskDuration");
        let seconds = task.and_then(|one| one["value"].as_f64());
        seconds.expect("a duration") * 1000.0
    }

    /// Presses a key, like a user without a pointer: `Tab`, `Enter`, `ArrowLeft`, or a character.
    pub fn press(&mut self, key: &str) {
        self.press_with(key, 0);
    }

    /// Presses a key together with Shift.
    pub fn press_with_shift(&mut self, key: &str) {
        const SHIFT: u32 = 8;
        self.press_with(key, SHIFT);
    }

    fn press_with(&mut self, key: &str, modifiers: u32) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            " " => (32, " "),
            "End" => (35, ""),
            "Home" => (36, ""),
            "ArrowLeft" => (37, ""),
            "ArrowUp" => (38, ""),
            "ArrowRight" => (39, ""),
            "ArrowDown" => (40, ""),
            "Backspace" => (8, ""),
            character => {
                let first = character.chars().next().expect("a key");
                (first.to_ascii_uppercase() as u32, character)
            }
        };
        let mut event = json!({
            "type": "keyDown",
            "key": key,
            "windowsVirtualKeyCode": code,
            "modifiers": modifiers,
        });
        if !text.is_empty() {
            event["text"] = json!(text);
        }
        self.call("Input.dispatchKeyEvent", event.clone());
        event["type"] = json!("keyUp");
        event.as_object_mut().expect("an object").remove("text");
        self.call("Input.dispatchKeyEvent", event);
    }

    /// Types a text.
    pub fn write(&mut self, text: &str) {
        text.chars().for_each(|c| self.press(&c.to_string()));
    }

    /// Presses Tab until the element that has the focus is the one for which an expression is true.
    /// In the expression, `el` is that element, of the page or of the report in it.
    pub fn tab_to(&mut self, expression: &str) {
        const MAX_TABS: usize = 400;
        let focused = format!(
            "(() => {{ let el = document.activeElement; if (el.contentDocument) el = el.contentDocument.activeElement; return {expression}; }})()"
        );
        for _ in 0..MAX_TABS {
            if self.value(&focused) == Value::Bool(true) {
                return;
            }
            self.press("Tab");
        }
        panic!("no key reaches the element: {expression}");
    }

    /// Chooses a file in a field for files.
    pub fn choose_file(&mut self, selector: &str, path: &std::path::Path) {
        let root = self.call("DOM.getDocument", json!({}));
        let found = self.call(
            "DOM.querySelector",
            json!({ "nodeId": root["root"]["nodeId"], "selector": selector }),
        );
        let node = &found["nodeId"];
        self.call(
            "DOM.setFileInputFiles",
            json!({ "files": [path], "nodeId": node }),
        );
    }

    /// Lets the page save files in a directory.
    pub fn save_in(&mut self, directory: &std::path::Path) {
        let session = std::mem::take(&mut self.session);
        self.call(
            "Browser.setDownloadBehavior",
            json!({ "behavior": "allow", "downloadPath": directory }),
        );
        self.session = session;
    }

    /// Shows the page in the form in which it is printed.
    pub fn on_paper(&mut self) {
        self.call("Emulation.setEmulatedMedia", json!({ "media": "print" }));
    }

    /// Goes to another page.
    pub fn go(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
    }

    /// Loads the page again, and waits until the old one is gone.
    pub fn reload(&mut self) {
        self.value("window.isOld = true");
        self.value("location.reload()");
        self.until("window.isOld === undefined");
    }

    /// Gives the window another size, in CSS pixels.
    pub fn resize(&mut self, width: u32, height: u32) {
        let size = json!({
            "width": width,
            "height": height,
            "deviceScaleFactor": 1,
            "mobile": width < 600,
        });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Sets the user's preference for dark or light colours.
    pub fn dark(&mut self, is_dark: bool) {
        let value = if is_dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": value }]);
        self.call(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        );
    }

    /// Waits until an expression is true.
    pub fn until(&mut self, expression: &str) {
        wait::until(expression, || {
            (self.value(expression) == Value::Bool(true)).then_some(())
        });
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
