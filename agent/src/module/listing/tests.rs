use super::*;
use core::ffi::CStr;

static LISTING_LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Calls [`search_maps`] with the budget reset. Tests take turns, because they share the
/// listing.
fn find_in_maps(pc: u64) -> Option<FoundModule> {
    let _lock = LISTING_LOCK.lock().unwrap();
    listing().unwrap().budget.earned_ns = 0;
    search_maps(pc)
}

fn own() -> u64 {
    search_maps as *const () as u64 + 1
}

fn libc() -> u64 {
    // SAFETY: a plain lookup by a terminated name.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"strlen".as_ptr()) as u64 }
}

fn name_of(found: &FoundModule) -> &CStr {
    // SAFETY: `name` is the address of a terminated name that stays valid.
    unsafe { CStr::from_ptr(found.name as *const core::ffi::c_char) }
}

#[test]
fn the_loader_and_the_maps_place_a_module_at_the_same_address() {
    crate::module::find::init();
    for pc in [own(), libc()] {
        let by_maps = find_in_maps(pc).unwrap();
        assert!((by_maps.start..by_maps.end).contains(&pc));
        if crate::module::find::is_cheap() {
            let by_loader = crate::module::find::find(pc).unwrap();
            assert_eq!(by_maps.start, by_loader.start);
        }
    }
}

#[test]
fn names_from_the_maps_are_paths_and_stay_valid() {
    let first = find_in_maps(own()).unwrap();
    assert_eq!(find_in_maps(own()).unwrap().name, first.name);
    let exe = std::env::current_exe().unwrap();
    assert_eq!(name_of(&first).to_str().unwrap(), exe.to_str().unwrap());
    let libc = find_in_maps(libc()).unwrap();
    assert!(name_of(&libc).to_str().unwrap().contains("/libc"));
    assert_eq!(name_of(&first).to_str().unwrap(), exe.to_str().unwrap());
}

#[test]
fn a_name_that_does_not_fit_is_unnamed() {
    let mut names = [0u8; 8];
    let mut used = 0;
    let first = keep_name(&mut names, &mut used, b"/a/b");
    let other = keep_name(&mut names, &mut used, b"/c/d");
    assert_eq!(keep_name(&mut names, &mut used, b"/a/b"), first);
    assert_eq!(first, &raw const names[0] as u64);
    assert_eq!(used, 5);
    let found = FoundModule {
        name: other,
        ..FoundModule::default()
    };
    assert_eq!(name_of(&found), c"[unnamed]");
}

#[test]
fn a_reading_is_used_while_its_modules_are_loaded() {
    let _lock = LISTING_LOCK.lock().unwrap();
    let listing = listing().unwrap();
    listing.budget.earned_ns = 0;
    assert!(search_maps(libc()).is_some());
    // The budget is used up.
    listing.budget.earned_ns = u64::MAX;
    assert!(search_maps(libc()).is_some() && search_maps(own()).is_some());
    assert!(search_maps(0x10).is_none());
    let holds = |entry: &&mut Entry| (entry.start..entry.end).contains(&own());
    let entry = listing.entries.iter_mut().find(holds).unwrap();
    // Another module is there now, or none.
    entry.fingerprint = Fingerprint::of(&std::fs::read("/proc/self/exe").unwrap()[..4096], 0x10000);
    assert!(search_maps(own()).is_none() && search_maps(libc()).is_some());
    listing.budget.earned_ns = 0;
    assert!(search_maps(own()).is_some());
}

#[test]
fn reading_takes_one_percent_of_the_time_in_the_long_run() {
    for cost in [100_000, 4_000_000, 40_000_000, 3_000_000_000] {
        let mut budget = Budget { earned_ns: 0 };
        let begin = 1 << 50;
        let mut now = begin;
        let mut spent = 0;
        let end = begin + 600_000_000_000u64;
        while now < end {
            if budget.allows(now) {
                budget.spend(now, now + cost);
                spent += cost;
                now += cost;
            }
            now += 1_000_000;
        }
        let max = (end - begin) / 100 + 20_000_000 + cost;
        assert!(spent <= max && spent >= max / 3, "{cost}: {spent} of {max}");
    }
}
