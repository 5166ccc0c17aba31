//! Tests of the guarantees for every picture, with many kinds of graphs.

use crate::check::{self, Arrow, Picture};
use crate::layout::{self, Layout};
use crate::synthetic;
use crate::{Edge, Graph, Node, render};

fn picture(graph: &Graph, layout: &Layout) -> Picture {
    let arrows = graph
        .edges
        .iter()
        .enumerate()
        .filter(|(e, _)| !layout.curves[*e].is_empty());
    let arrows = arrows.map(|(e, edge)| Arrow {
        from: edge.from,
        to: edge.to,
        curve: layout.curves[e].clone(),
        label: layout.labels[e],
    });
    Picture {
        size: layout.size,
        title: layout.title,
        boxes: layout.boxes.clone(),
        arrows: arrows.collect(),
    }
}

#[test]
fn nothing_overlaps_and_no_arrow_runs_through_a_box() {
    for (name, graph) in synthetic::all() {
        let layout = layout::lay_out(&graph);
        let picture = picture(&graph, &layout);
        assert_eq!(
            picture.arrows.len(),
            graph.edges.len(),
            "{name}: an arrow is missing"
        );
        let found = check::measure(&picture);
        let faults = [
            found.through_boxes,
            found.through_labels,
            found.overlaps,
            found.outside,
            found.loose,
        ];
        assert_eq!(faults, [0; 5], "{name}: {found:?}");
    }
}

#[test]
fn the_same_graph_gives_the_same_bytes() {
    let graph = synthetic::program(60, 160, 3);
    assert_eq!(render(&graph), render(&graph.clone()));
}

#[test]
fn an_empty_graph_is_drawn_with_a_message() {
    let svg = render(&Graph {
        title: vec!["File: x".into()],
        ..Graph::default()
    });
    assert!(
        svg.contains("Nothing to show") && svg.contains("File: x"),
        "{svg}"
    );
    assert!(render(&Graph::default()).contains("Nothing to show"));
}

#[test]
fn hostile_names_remain_text() {
    let evil = "]]></title></text><script>alert(1)</script>\"'&\u{0}\u{1b}\n<img onerror=x>";
    let node = Node {
        name: evil.into(),
        full_name: evil.into(),
        place: evil.into(),
        detail: evil.into(),
        flat_label: evil.into(),
        cum_label: "c".into(),
        ..Node::default()
    };
    let edge = Edge {
        from: 0,
        to: 0,
        label: evil.into(),
        detail: evil.into(),
        ..Edge::default()
    };
    let graph = Graph {
        title: vec![evil.into()],
        nodes: vec![node],
        edges: vec![edge],
        total: 0.0,
    };
    let svg = render(&graph);
    assert_eq!(svg.matches("<script>").count(), 1, "only our own script");
    assert_eq!(
        svg.matches("]]>").count(),
        1,
        "only the end of our own script"
    );
    assert!(!svg.contains("<img") && !svg.contains('\u{0}') && !svg.contains('\u{1b}'));
    assert!(svg.contains("&lt;script&gt;alert(1)"));
}

#[test]
fn dangling_edges_and_nan_are_handled() {
    let mut graph = synthetic::plain(
        3,
        &[(0, 1, 1.0), (1, 9, 1.0), (7, 2, 1.0), (1, 2, f64::NAN)],
    );
    graph.nodes[0].flat = f64::INFINITY;
    graph.nodes[1].color_weight = f64::NAN;
    graph.total = f64::NAN;
    let svg = render(&graph);
    assert_eq!(svg.matches("class=\"edge ").count(), 2);
    assert!(
        !svg.contains("NaN") || svg.contains("NaNMB"),
        "only in the label given to us"
    );
    assert!(!svg.contains("=\"inf") && !svg.contains("=\"NaN"));
}
