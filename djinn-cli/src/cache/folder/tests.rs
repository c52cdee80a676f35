//! Cache folders of other users, and locks that are links.

use super::*;
use crate::own;
use std::os::unix::fs::PermissionsExt;

#[test]
fn folders_that_others_may_write_to_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("a/b");
    check(&folder, false).unwrap();
    own::create(&folder).unwrap();
    for made in [&folder, &place.path().join("a")] {
        assert_eq!(fs::metadata(made).unwrap().permissions().mode() & 0o7777, 0o700);
    }
    for (mode, shared, fine) in [
        (0o755, false, true),
        (0o775, false, false),
        (0o775, true, false),
        (0o757, false, false),
        (0o1777, false, false),
        (0o1777, true, true),
    ] {
        fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
        let checked = check(&folder, shared);
        assert_eq!(checked.is_ok(), fine, "{mode:o} {shared}: {checked:?}");
        let remedy = format!("chmod -R go-w {}", folder.display());
        assert!(fine || checked.unwrap_err().to_string().contains(&remedy));
    }
}

#[test]
fn folders_of_other_users_are_refused() {
    assert_eq!(objection(1000, 1000, 0o700, false), None);
    assert_eq!(objection(0, 1000, 0o755, false), None);
    for (owner, user) in [(1001, 1000), (1000, 0)] {
        assert_eq!(objection(owner, user, 0o700, true), Some(Objection::Owner(owner)));
    }
}

#[test]
fn the_lock_follows_no_link_and_keeps_what_it_finds() {
    let place = tempfile::tempdir().unwrap();
    let (lock, precious) = (place.path().join(".lock"), place.path().join("precious"));
    fs::write(&precious, "precious").unwrap();
    std::os::unix::fs::symlink(&precious, &lock).unwrap();
    assert!(open_lock(&lock).unwrap_err().to_string().contains("remove it"));
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    open_lock(&lock).unwrap_err();
    open_lock(&precious).unwrap();
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
}
