//! Messages for users: what is wrong, why, and what to do about it.
//!
//! Each message is written once. Both the program and the page that lists the messages (`docs/messages.md`)
//! use this text.

use std::fmt::{Display, Write};

/// A sentence about something that is wrong.
#[derive(Debug)]
pub struct Message {
    /// What has happened. A name in braces stands for a word that is known only at run time.
    pub happened: &'static str,
    /// What to do, as a request. Empty if there is nothing to do, or if a word in
    /// [`happened`](Self::happened) has a remedy of its own.
    pub remedy: &'static str,
    /// The cause, for the guide.
    pub cause: &'static str,
}

impl Message {
    /// Returns the sentence, with a word in place of each name.
    ///
    /// # Panics
    /// Panics if a name has no word.
    #[must_use]
    pub fn with(&self, words: &[(&str, &dyn Display)]) -> String {
        let mut sentence = String::new();
        fill(&mut sentence, self.happened, words);
        if !self.remedy.is_empty() {
            sentence.push_str("; ");
            fill(&mut sentence, self.remedy, words);
        }
        sentence
    }

    /// Returns the row of the guide's table: the sentence, its cause, its remedy.
    #[must_use]
    pub fn row(&self) -> String {
        let in_italics = |text: &str| text.replace(['{', '}'], "*");
        format!("| {} | {} | {} |", in_italics(self.happened), self.cause, in_italics(self.remedy))
    }
}

/// Appends a text, with a word in place of each name.
fn fill(sentence: &mut String, text: &str, words: &[(&str, &dyn Display)]) {
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('{') {
        let (name, after) = behind.split_once('}').expect("a name ends");
        let (_, word) = words
            .iter()
            .find(|(known, _)| *known == name)
            .unwrap_or_else(|| panic!("{name} has no word in {text:?}"));
        let _ = write!(sentence, "{before}{word}");
        rest = after;
    }
    sentence.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: Message =
        Message { happened: "{what} is full ({bytes} bytes)", remedy: "empty {what}", cause: "use" };

    #[test]
    fn names_become_words_and_the_remedy_comes_last() {
        let words: [(&str, &dyn Display); 2] = [("bytes", &7), ("what", &"the bag")];
        assert_eq!(MESSAGE.with(&words), "the bag is full (7 bytes); empty the bag");
        assert_eq!(MESSAGE.row(), "| *what* is full (*bytes* bytes) | use | empty *what* |");
    }

    #[test]
    #[should_panic(expected = "bytes has no word")]
    fn a_name_without_a_word_is_a_mistake() {
        let _ = MESSAGE.with(&[("what", &"the bag")]);
    }
}
