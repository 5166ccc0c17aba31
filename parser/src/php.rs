//! Tells users of PHP that allocations of scripts are not seen, because PHP has an allocator of its
//! own, which maps memory from the kernel.

use profile::{Profile, maps};

/// Beginnings of the names of functions that run a script.
const SCRIPT_FUNCTIONS: [&str; 4] = [
    "execute_ex",
    "zend_execute",
    "zend_call_function",
    "php_execute",
];
/// Allocations of scripts are considered missing if they are less than 1 / `MIN_RATIO` of a
/// profile's bytes.
const MIN_RATIO: i64 = 2;

/// Returns a remark on a heap profile of PHP in which scripts have allocated little.
pub fn remark(profile: &Profile) -> Option<String> {
    if !profile.is_memory_profile() || !profile.mappings.iter().any(|m| is_php(&m.path)) {
        return None;
    }
    let runs_script: Vec<bool> = profile
        .locations
        .iter()
        .map(|location| {
            let mut lines = profile.lines_of(location).iter();
            lines.any(|line| {
                let name = &profile.functions[line.function as usize].name;
                SCRIPT_FUNCTIONS.iter().any(|start| name.starts_with(start))
            })
        })
        .collect();
    let mut total = 0i64;
    let mut in_scripts = 0i64;
    let columns = profile.sample_types.len();
    for index in 0..profile.stacks.len() {
        let value = profile.values[index * columns + profile.default_type].saturating_abs();
        total = total.saturating_add(value);
        if profile
            .stacks
            .get(index)
            .iter()
            .any(|&frame| runs_script[frame as usize])
        {
            in_scripts = in_scripts.saturating_add(value);
        }
    }
    (in_scripts < total / MIN_RATIO).then(|| {
        "PHP has an allocator of its own for scripts, which is not seen here; to see their memory, \
         set USE_ZEND_ALLOC=0"
            .to_owned()
    })
}

/// Returns true for PHP's programs and its library for web servers.
fn is_php(path: &std::path::Path) -> bool {
    let path = maps::strip_deleted(path).0;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_suffix(".so").unwrap_or(&name);
    let is_version = |rest: &str| rest.chars().all(|c| c.is_ascii_digit() || c == '.');
    ["php-fpm", "php-cgi", "phpdbg", "libphp", "php"]
        .iter()
        .any(|start| name.strip_prefix(start).is_some_and(is_version))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn of(path: &str, function: &str) -> Option<String> {
        let text = format!(
            "heap profile: 1: 100 [1: 100] @ heapprofile\n1: 100 [1: 100] @ 0x1010\n\
             MAPPED_LIBRARIES:\n1000-2000 r-xp 0 08:01 42 {path}\n"
        );
        let mut profile = profile::read(text.as_bytes(), "x").unwrap();
        profile.functions = vec![profile::Function {
            name: function.into(),
            ..Default::default()
        }];
        profile.lines = vec![profile::Line::default()];
        profile.locations[0].line_count = 1;
        remark(&profile)
    }

    #[test]
    fn php_without_scripts_gets_advice() {
        let message = of("/usr/bin/php8.2", "php_module_startup").unwrap();
        assert!(message.contains("USE_ZEND_ALLOC=0"), "{message}");
        assert_eq!(of("/usr/bin/php8.2", "execute_ex"), None);
        assert_eq!(of("/usr/bin/phpize", "main"), None);
        assert_eq!(of("/usr/bin/python3", "main"), None);
    }

    #[test]
    fn php_is_recognised_by_its_functions() {
        for path in [
            "/usr/sbin/php-fpm8.2",
            "/usr/lib/libphp.so",
            "/usr/lib/libphp8.2.so",
            "/opt/php",
        ] {
            assert!(is_php(Path::new(path)), "{path}");
        }
        assert!(!is_php(Path::new("/usr/lib/phpredis.so")));
    }
}
