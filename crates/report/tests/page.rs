//! Reports of small whole records: what they say, how they escape, and how a browser shows them.

#[path = "../../audit/tests/common/mod.rs"]
mod common;

use common::{Directory, Record};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use tilewright_audit::Limits;
use tilewright_report::{Report, ReportError};

fn report(dir: &Directory) -> Report {
    Report::read(dir.path(), &Limits::default()).unwrap()
}

#[test]
fn the_answer_comes_first_and_every_case_is_there() {
    let dir = Record::valid().write("answer");
    let report = report(&dir);
    let (markdown, html) = (report.markdown(), report.html());
    assert!(markdown.starts_with("# The gate is passed: 9 of 9 rules hold."), "{markdown}");
    assert!(report.audit().passed());
    for case in ["softmax-f32-37x1537", "rmsnorm-f32-256x3072", "gemm-f32-33x700x129"] {
        // Once in the table of cases, once a path, once in the searches, at least.
        assert!(markdown.matches(case).count() >= 8, "{case}");
        assert!(html.matches(case).count() >= 10, "{case}");
    }
    for title in ["Misses", "Held-out cases", "Ways to choose", "Controls", "Audit"] {
        assert!(markdown.contains(&format!("## {title}\n")), "{title}");
        assert!(html.contains(&format!("<h2>{title}</h2>")), "{title}");
    }
    for plot in [
        "Regret by case",
        "Gain over the incumbent",
        "Measuring the model&#39;s best K",
        "Predicted against measured",
        "Against the controls",
        "Roofline, f32, 2 threads",
    ] {
        assert!(html.contains(&format!("<figure><h2>{plot}</h2>")), "{plot}");
    }
    // Which study of which machine it is, and which way a limit goes.
    assert!(html.contains("Tilewright study small · Test CPU @ 2.0GHz · 2 threads"), "{html}");
    assert!(markdown.contains("| ≤ 0.5 |") && markdown.contains("| ≥ 3 |"), "{markdown}");
    // Nobody measured by a device's clock: no column for it.
    assert!(!html.contains("device gain") && html.contains("single-call gain"));
    assert!(
        markdown.contains("refused as faster than 0.9 of their floor: 1 trial of 1 case; "),
        "{markdown}"
    );
    assert!(markdown.contains("gpu-matrix: on 2 held-out cases the model"), "{markdown}");
    // A control that isn't there is said.
    assert!(markdown.contains("torch wasn't measured in 6 of 6 cases: no module named torch"));
    assert!(!html.contains("NaN") && !html.contains("inf"));
}

#[test]
fn nothing_is_loaded_and_nothing_runs() {
    let html = report(&Record::valid().write("self-contained")).html();
    for bad in ["<script", "http://", "https://", "src=", "url(", "@import", "javascript:"] {
        assert!(!html.contains(bad), "{bad}");
    }
    assert!(html.contains("default-src 'none'"));
}

#[test]
fn a_record_that_fails_its_audit_says_so_first() {
    let record = Record::altered(&|path, v| {
        if path == "results.json" {
            v["losers"] = json!(7);
        }
    });
    let report = report(&record.write("failing"));
    assert!(report.markdown().starts_with("# The record fails its audit"));
    assert!(report.html().contains("<title>The record fails its audit"));
    assert!(report.markdown().contains("results.guard"));
}

#[test]
fn simulated_times_are_no_answer() {
    let record = Record::altered(&|path, v| {
        if path == "machine.json" {
            v["meter"] = json!("simulated");
        }
    });
    let report = report(&record.write("simulated"));
    assert!(report.audit().passed());
    assert!(report.markdown().starts_with("# The times of this record are simulated"));
}

#[test]
fn markup_from_files_is_text() {
    let hostile = "<img src=x onerror=alert(1)>\"'|`*";
    let record = Record::altered(&|path, v| match path {
        "machine.json" => v["controls"][1]["reason"] = json!(hostile),
        "search/softmax-f32-128x2048.json" => v["trials"][5]["error"]["message"] = json!(hostile),
        "frozen/softmax-f32-37x1537.json" => v["advice"]["abstains"] = json!(hostile),
        _ => {}
    });
    let report = report(&record.write("hostile"));
    let (markdown, html) = (report.markdown(), report.html());
    assert!(html.matches("&lt;img src=x onerror=alert(1)&gt;&quot;&#39;|`*").count() >= 3);
    assert!(!html.contains("<img") && !markdown.contains("<img"));
    assert!(markdown.contains("&lt;img src=x onerror=alert(1)&gt;\"'\\|\\`\\*"));
}

#[test]
fn an_unfinished_record_has_no_report() {
    let mut record = Record::valid();
    record.entries.retain(|e| e.0 != "results");
    record.files.remove("results.json");
    let dir = record.write("unfinished");
    let result = Report::read(dir.path(), &Limits::default());
    assert!(matches!(result, Err(ReportError::Unfinished(_))));
    let empty = Directory::new("nothing");
    let result = Report::read(empty.path(), &Limits::default());
    assert!(matches!(result, Err(ReportError::Audit(_))));
}

/// A browser, if there is one.
fn browser() -> Option<PathBuf> {
    let stated = std::env::var_os("TILEWRIGHT_BROWSER").map(PathBuf::from);
    let known = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
    let found = stated.into_iter().chain(known.map(PathBuf::from)).find(|p| p.is_file());
    if found.is_none() {
        eprintln!("skipped: no browser (set TILEWRIGHT_BROWSER)");
    }
    found
}

/// Runs the browser on a page; gives what it printed.
fn browse(browser: &Path, profile: &Path, arguments: &[&str], page: &Path) -> (String, String) {
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        .args(["--no-first-run", "--enable-logging=stderr", "--hide-scrollbars"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(arguments)
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// The page in a frame of a phone's width, measured by a script of the page around it.
fn framed(html: &str, width: u32, dark: bool) -> String {
    // The frame's page as it is but for its policy, which forbids nothing that is in it.
    let inner = html.replace('&', "&amp;").replace('"', "&quot;");
    let scheme = if dark { "dark" } else { "light" };
    format!(
        "<!doctype html><html style=\"color-scheme: {scheme}\"><body style=\"margin:0\">\
         <iframe id=\"f\" style=\"width:{width}px;height:800px;border:0;color-scheme:{scheme}\" \
         srcdoc=\"{inner}\"></iframe><pre id=\"out\"></pre><script>\
         window.onload = () => {{ const w = document.getElementById('f').contentWindow; \
         const d = w.document, e = d.documentElement; \
         const style = w.getComputedStyle(d.body); \
         let wide = []; for (const x of d.querySelectorAll('main > *, figure, svg, h1, h2, li, p')) \
         {{ if (x.getBoundingClientRect().right > {width} + 0.5) wide.push(x.tagName); }} \
         let small = 1e9; for (const t of d.querySelectorAll('svg text')) \
         {{ small = Math.min(small, t.getBoundingClientRect().height); }} \
         document.getElementById('out').textContent = JSON.stringify({{ \
         page: e.scrollWidth, view: e.clientWidth, wide, small, \
         back: style.backgroundColor, ink: style.color, \
         figures: d.querySelectorAll('figure svg').length, \
         rows: d.querySelectorAll('tbody tr').length }}); }};</script></body></html>"
    )
}

/// Lightness of `rgb(r, g, b)`, 0 to 255.
fn lightness(colour: &str) -> f64 {
    let digits = |c: char| !c.is_ascii_digit();
    let parts: Vec<f64> = colour
        .split(digits)
        .filter(|p| !p.is_empty())
        .take(3)
        .map(|p| p.parse().unwrap())
        .collect();
    parts.iter().sum::<f64>() / 3.0
}

#[test]
fn a_browser_shows_it_without_errors_on_a_phone_light_and_dark() {
    let Some(browser) = browser() else { return };
    let dir = Record::valid().write("browser");
    let html = report(&dir).html();
    dir.write("page.html", &html);
    let profile = dir.path().join("profile");

    // The page itself: no message of the console, everything parsed.
    let (dom, log) = browse(&browser, &profile, &["--dump-dom"], &dir.path().join("page.html"));
    assert!(!log.contains("CONSOLE"), "{log}");
    assert!(dom.contains("</main>") && dom.matches("<figure>").count() == 6);

    for (width, dark) in [(390, false), (390, true), (1280, false)] {
        dir.write("frame.html", framed(&html, width, dark));
        let size = format!("--window-size={},900", width.max(600) + 100);
        let (dom, log) =
            browse(&browser, &profile, &["--dump-dom", &size], &dir.path().join("frame.html"));
        assert!(!log.contains("CONSOLE"), "{log}");
        let out = dom.split("<pre id=\"out\">").nth(1).unwrap().split("</pre>").next().unwrap();
        let seen: serde_json::Value = serde_json::from_str(out).unwrap();
        assert_eq!(seen["page"], seen["view"], "sideways overflow at {width}: {seen}");
        assert_eq!(seen["wide"], json!([]), "{seen}");
        assert_eq!(seen["figures"], 6, "{seen}");
        assert!(seen["small"].as_f64().unwrap() >= 10.0, "text too small at {width}: {seen}");
        let back = lightness(seen["back"].as_str().unwrap());
        let ink = lightness(seen["ink"].as_str().unwrap());
        assert_eq!(back < ink, dark, "{seen}");
        assert!((back - ink).abs() > 150.0, "{seen}");
    }
}
