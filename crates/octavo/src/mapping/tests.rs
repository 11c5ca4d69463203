//! Tests of a mapping against a map of words and tags.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::policy::Shadow;
use crate::units::FrameId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    word: PageWord,
    tags: [bool; 3],
}

#[derive(Clone, Debug)]
enum Step {
    Set(u64, u32),
    Remove(u64, Option<u64>),
    Tag(u64, usize),
    Untag(u64, usize),
    Next(u64, usize),
}

/// Indices near each other, in different nodes, and far apart.
fn index() -> impl Strategy<Value = u64> {
    prop_oneof![0..20u64, 60..70u64, 4090..4100u64, 0..300_000u64, (1u64 << 40) - 2..1 << 40]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (index(), 0..1000u32).prop_map(|(index, frame)| Step::Set(index, frame)),
        3 => (index(), prop::option::of(any::<u64>())).prop_map(|(index, left)| Step::Remove(index, left)),
        4 => (index(), 0..3usize).prop_map(|(index, tag)| Step::Tag(index, tag)),
        2 => (index(), 0..3usize).prop_map(|(index, tag)| Step::Untag(index, tag)),
        2 => (index(), 0..3usize).prop_map(|(index, tag)| Step::Next(index, tag)),
    ]
}

fn mapping(tags: Tags) -> (Mapping, Arc<Budget>) {
    let budget = Arc::new(Budget::new(1 << 30));
    (Mapping::new(10_000, 1 << 40, tags, Arc::clone(&budget)).unwrap(), budget)
}

fn run(tags: Tags, steps: Vec<Step>) {
    let (mapping, budget) = mapping(tags);
    let mut model = BTreeMap::<u64, Page>::new();
    for step in steps {
        match step {
            Step::Set(index, frame) => {
                let word = PageWord::frame(FrameId(frame));
                let before = mapping.lock().set(index, word);
                let page = model.entry(index).or_insert(Page { word: PageWord::NOTHING, tags: [false; 3] });
                assert_eq!(before, page.word);
                page.word = word;
            }
            Step::Remove(index, left) => {
                let mut changes = mapping.lock();
                let path = changes.find(index);
                assert_eq!(path.is_some(), model.contains_key(&index));
                if let Some(path) = path {
                    let left = PageWord::left(left.map(Shadow::at));
                    changes.remove(&path, left);
                    model.remove(&index);
                    if left != PageWord::NOTHING {
                        model.insert(index, Page { word: left, tags: [false; 3] });
                    }
                }
            }
            Step::Tag(index, tag) | Step::Untag(index, tag) if tags == Tags::Kept => {
                let mut changes = mapping.lock();
                if let Some(path) = changes.find(index) {
                    let to = matches!(step, Step::Tag(..));
                    let tag_there = &mut model.get_mut(&index).unwrap().tags[tag];
                    assert_eq!(changes.has_tag(&path, Tag::ALL[tag]), *tag_there);
                    if to {
                        changes.set_tag(&path, Tag::ALL[tag]);
                    } else {
                        changes.clear_tag(&path, Tag::ALL[tag]);
                    }
                    *tag_there = to;
                }
            }
            Step::Next(from, tag) if tags == Tags::Kept => {
                let expected = model.range(from..).find(|(_, page)| page.tags[tag]);
                let found = mapping.lock().next_tagged(from, Tag::ALL[tag]);
                assert_eq!(found, expected.map(|(index, page)| (*index, page.word)));
            }
            _ => {}
        }
    }
    let changes = mapping.lock();
    changes.validate();
    for (index, page) in &model {
        assert_eq!(mapping.peek(*index), page.word);
        assert_eq!(changes.get(*index), page.word);
        assert_eq!(
            changes.get(index ^ 1),
            model.get(&(index ^ 1)).map_or(PageWord::NOTHING, |page| page.word)
        );
    }
    if tags == Tags::Kept {
        for tag in Tag::ALL {
            let any = model.values().any(|page| page.tags[tag as usize]);
            assert_eq!(changes.any_tagged(tag), any);
        }
    }
    drop(changes);
    for index in model.keys() {
        let mut changes = mapping.lock();
        let path = changes.find(*index).unwrap();
        changes.remove(&path, PageWord::NOTHING);
    }
    assert_eq!(mapping.lock().nodes_in_use(), 0, "an empty mapping has no nodes");
    drop(mapping);
    assert_eq!(budget.used_bytes(), 0, "all is given back");
}

proptest! {
    #[test]
    fn a_tagged_mapping_agrees_with_its_model(steps in prop::collection::vec(step(), 0..200)) {
        run(Tags::Kept, steps);
    }

    #[test]
    fn a_mapping_without_tags_agrees_with_its_model(steps in prop::collection::vec(step(), 0..200)) {
        run(Tags::None, steps);
    }
}

#[test]
fn a_search_for_tagged_pages_steps_over_those_without() {
    let (mapping, _) = mapping(Tags::Kept);
    let mut changes = mapping.lock();
    for index in 0..64 * 64 {
        changes.set(index, PageWord::frame(FrameId(index as u32)));
    }
    let last = changes.find(64 * 64 - 1).unwrap();
    changes.set_tag(&last, Tag::Writeback);
    let mut seen = 0;
    let found = changes.next_tagged_counting(3, Tag::Writeback, &mut seen);
    assert_eq!(found.map(|(index, _)| index), Some(64 * 64 - 1));
    assert_eq!(seen, 2, "the root and one leaf of 64");
}

#[test]
#[should_panic(expected = "keeps no tags")]
fn a_mapping_without_tags_refuses_them() {
    let (mapping, _) = mapping(Tags::None);
    let mut changes = mapping.lock();
    changes.set(1, PageWord::frame(FrameId(1)));
    let path = changes.find(1).unwrap();
    changes.set_tag(&path, Tag::Dirty);
}

#[test]
fn memory_is_charged_as_it_is_reached_and_used_again() {
    let (mapping, budget) = mapping(Tags::None);
    for round in 0..3 {
        for leaf in 0..64 {
            mapping.lock().set(leaf * 64, PageWord::frame(FrameId(round)));
        }
        // The tree has 64 leaves and two nodes above, charged 64 at a time.
        assert_eq!(budget.used_bytes(), 2 * 64 * 320);
        for leaf in 0..64 {
            let mut changes = mapping.lock();
            let path = changes.find(leaf * 64).unwrap();
            changes.remove(&path, PageWord::NOTHING);
        }
    }
}
