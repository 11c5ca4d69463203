use super::*;

#[test]
fn blocks_that_are_mapped_twice_are_not_alone() {
    let ours = |start: u64, end: u64, offset| Mapping { start, end, what: What::Ours(offset), protection: 3 };
    let of = BTreeMap::from([(1, vec![ours(0x1000, 0x5000, 0)]), (2, vec![ours(0x9000, 0xb000, 0x1000)])]);
    let mut view = View::look(Vec::new(), true, "fe:00 1");
    for mapping in of.values().flatten() {
        let What::Ours(offset) = mapping.what else { continue };
        let blocks = offset..offset + (mapping.end - mapping.start);
        if view.mapped.overlaps(&blocks) {
            view.shared.insert(0x1000..0x3000);
        }
        view.mapped.insert(blocks);
    }
    assert!(view.is_alone(&(0..0x1000)) && view.is_alone(&(0x3000..0x4000)));
    assert!(!view.is_alone(&(0..0x4000)) && !view.is_alone(&(0x2000..0x3000)));
    view.knows_all = false;
    assert!(!view.is_alone(&(0..0x1000)));
}
