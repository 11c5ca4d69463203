//! `octavo-lab report` in a browser: everything on the page is visible, on a wide screen and on a narrow one.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn lab(folder: &Path, line: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_octavo-lab"))
        .args(line.split_whitespace())
        .current_dir(folder)
        .output()
        .expect("octavo-lab starts");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes a folder with results of each kind, and their page.
fn results() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder for results");
    for line in [
        "usemem -n 1 -r 2 -j 4k 24M --memory 64M --mode all --json usemem.json --record usemem.trace",
        "replay usemem.trace --policy reuse,fifo,belady --memory 16M,24M --json replay.json",
        "percpu-lists --messages 50 --no-measure --json percpu-lists.json",
        "scaling --mechanism pin --cpus 1,2,4 --json scaling.json",
        "machines --json machines.json",
        "report .",
    ] {
        lab(folder.path(), line);
    }
    folder
}

/// A script that writes into the document what a reader would see.
const LOOK: &str = r#"<script>addEventListener("load", () => {
    const all = (what) => [...document.querySelectorAll(what)];
    const is_seen = (element) => { const at = element.getBoundingClientRect(); return at.width > 0 && at.height > 0; };
    const look = document.createElement("pre");
    look.id = "look";
    look.textContent = JSON.stringify({
        width: innerWidth,
        overflows: document.documentElement.scrollWidth > innerWidth,
        images: all("svg").length,
        hidden_images: all("svg").filter((svg) => !is_seen(svg)).length,
        wide_images: all("svg").filter((svg) => svg.getBoundingClientRect().right > innerWidth).length,
        empty_images: all("svg").filter((svg) => !svg.querySelector("text")).length,
        tables: all("section > .scrolls table").length,
        hidden_tables: all("section > .scrolls table").filter((table) => !is_seen(table)).length,
        dead_links: all("nav a").filter((a) => !document.getElementById(a.hash.slice(1))).length,
        links: all("nav a").length,
        loaded: performance.getEntriesByType("resource").length,
    });
    document.body.append(look);
});</script>"#;

fn look(page: &Path, width: u32) -> Value {
    let profile = tempfile::tempdir().expect("a folder for the browser");
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
        ])
        .args(["--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--window-size={width},900"))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("chromium starts");
    let document = String::from_utf8_lossy(&output.stdout).into_owned();
    let seen = document.split_once("<pre id=\"look\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let (seen, _) = seen.unwrap_or_else(|| panic!("{}\n{document}", String::from_utf8_lossy(&output.stderr)));
    serde_json::from_str(seen).expect("what the script says is JSON")
}

#[test]
#[ignore = "needs chromium, which .ci/run installs before it runs this"]
fn a_browser_shows_all_of_the_page() {
    let folder = results();
    let page = folder.path().join("report.html");
    let text = fs::read_to_string(&page).expect("a page");
    let looked_at = folder.path().join("looked-at.html");
    fs::write(&looked_at, text.replace("</body>", &format!("{LOOK}</body>"))).expect("a page to look at");
    for width in [1280, 500] {
        let seen = look(&looked_at, width);
        let count = |what: &str| seen[what].as_u64().unwrap_or_else(|| panic!("{what}: {seen}"));
        assert_eq!(count("width"), u64::from(width), "{seen}");
        assert_eq!(seen["overflows"], false, "the page itself never scrolls sideways: {seen}");
        // usemem has two images, the time and the time by function. Each other kind has one.
        assert_eq!((count("images"), count("links")), (5, 5), "{seen}");
        assert!(count("tables") >= 7, "{seen}");
        for nothing in
            ["hidden_images", "wide_images", "empty_images", "hidden_tables", "dead_links", "loaded"]
        {
            assert_eq!(count(nothing), 0, "{nothing}: {seen}");
        }
    }
}
