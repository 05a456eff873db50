"""The optimiser: plans of workloads from demands, selectable configurations and scores.

Modules without input or output:

    model          the problem
    views          parts of the result, as responses have them
    plan           the result
    labels         parses manifests into the model
    solve          the function `solve(problem, limits)`
    values         scores as exact whole numbers
    table          the options as arrays
    search         finds the best plan, with a proven gap
    program        the integer program
    bounds         upper bounds, and items to leave out
    greedy         a plan without a solver, and the check of every plan
    neighbourhood  improves plans of large problems part by part
    ties           selects one of several best plans
    explain        explains the assignment of each workload
    losses         workloads that would be removed for lack of scores
    comparison     compares two plans
    plot           a picture of a plan

Modules that use them:

    settings       the settings
    service        the operations, shared by all interfaces
    errors         the optimiser's errors
    params         the fields of a request
    requestbody    parses the JSON of a request
    reading        builds the problem of a request from the hub's objects
    backend        reads and writes objects on the hub
    scores         reads scores and their scorers
    selector       how a Placement selects one cluster
    clusters       checks the clusters of a plan
    solver         runs `solve` in a separate process
    manifests      a plan as objects, and back
    writer         applies a plan atomically
    hubredis       sends ticks, and records changes and plans in Redis
    redisrights    the optimiser's rights in Redis
    plans          data of plans for the page
    access         authenticates and authorizes callers
    middleware     checks every request
    app            the HTTP service
    main           runs the HTTP service
    mcp            the interface for assistants
    mcp_tools      the tools for assistants
    mcp_views      responses of the tools
    commands       the command line
    pages          the page's plans, with `templates`

The package needs the extra `optimizer`, and for pictures also `plot`.
"""
