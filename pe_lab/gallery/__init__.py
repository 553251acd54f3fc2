"""The gallery: results, claims and a page for each encoding, as a part of the documentation or a site of its own."""
