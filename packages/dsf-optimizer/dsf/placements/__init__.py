"""Why a Placement selects its clusters, and which ones it would select with other scores.

scheduling    the rules of OCM's placement controller, as pure functions
explanation   a Placement explained by them, as data
kinds         the kinds of these objects that nothing else reads
reader        the objects of the hub that it takes, and OCM's own scheduler if it can be asked
command       `dsf placement`
pages         the page's Placements, with `templates`
situations    the Placements of `dsf compare`, from a file or from the hub
replay        decisions of one of them over time
"""
