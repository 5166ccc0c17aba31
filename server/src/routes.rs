//! Maps paths to handlers.

use crate::guard::Access;
use crate::profiles::{self, Dialect};
use crate::reply::{Reply, Step};
use crate::request::Request;
use crate::server::Server;
use crate::{api, assets, metrics, profile_list, report, uploads};

impl Server {
    /// Returns true if a path changes something and therefore requires POST.
    pub fn is_change(path: &str) -> bool {
        matches!(
            path,
            "/api/start" | "/api/stop" | "/api/mark" | "/api/upload" | "/api/forget"
        )
    }

    /// Returns the kind of access that a request needs.
    pub fn access(path: &str, is_post: bool) -> Access {
        match path {
            "/healthz" if !is_post => Access::Health,
            "/" if !is_post => Access::Page,
            path if is_post && Self::is_change(path) => Access::Change,
            _ => Access::Read,
        }
    }

    /// Answers a request.
    pub fn answer(&self, request: &Request) -> Step {
        let path = request.path.as_str();
        let takes_post = Self::is_change(path) || path.ends_with("/symbol");
        if request.is_post && !takes_post {
            let refusal = Reply::refusal(405, "this path is read-only: use GET");
            return refusal.with_header("Allow", "GET, HEAD".to_owned()).into();
        }
        if !request.is_post && Self::is_change(path) {
            let refusal = Reply::refusal(405, "this path changes something: use POST");
            return refusal.with_header("Allow", "POST".to_owned()).into();
        }
        let step = self
            .profile(path, request)
            .or_else(|| self.other_path(path, request));
        let step = step.unwrap_or_else(|| {
            Err(Reply::refusal(
                404,
                "there is no such page; / lists those that exist",
            ))
        });
        step.unwrap_or_else(Step::Done)
    }

    fn profile(&self, path: &str, request: &Request) -> Option<Result<Step, Reply>> {
        let (kind, dialect) = match path.strip_prefix("/debug/pprof/") {
            Some(kind) => (kind, Dialect::Go),
            None => (path.strip_prefix("/pprof/")?, Dialect::Gperftools),
        };
        profiles::answer(self, kind, dialect, request)
    }

    fn other_path(&self, path: &str, request: &Request) -> Option<Result<Step, Reply>> {
        let reply = match path {
            "/healthz" => Ok(Reply::text("ok\n")),
            "/metrics" => Ok(metrics::answer(self, request)),
            "/debug/pprof" | "/debug/pprof/" => Ok(profile_list::answer(self, request)),
            "/api/processes" => api::processes(self, request),
            "/api/history" => api::history(self, request),
            "/api/mark" => return Some(api::mark(self, request)),
            "/api/start" => api::start(self, request),
            "/api/stop" => api::stop(self, request),
            "/api/forget" => api::forget(self, request),
            "/api/upload" => return Some(uploads::receive(&self.uploads, request)),
            "/report" => return Some(report::answer(self, request)),
            "/report/cpu" => return Some(report::cpu(self, request)),
            "/dump" => return Some(report::dump(self, request)),
            "/report/lost" => return Some(report::lost(self, request)),
            _ => Ok(assets::find(path)?),
        };
        Some(reply.map(Step::Done))
    }
}
