"""The web page: scores, reasons for missing ones, and actions.

In reading order: `states` names the states of a pair, `reading` reads the data from `dsf.fleet`, `search` parses the
language of the search box and `finding` executes it, `dividing` groups the fleet, `pages` says what a page is and finds
those of plug-ins, `views` are the page's own, `backtests` the tab of what was tested, `drawing` makes pictures,
`rendering` turns a view into HTML, which open pages poll. `guard` is the outer middleware: host names, proxies,
headers. `access` authenticates and authorizes users, `sessions` stores logins, `acting` performs actions, `backtesting`
those that take minutes. `objects` shows what was declared, `kube` asks the API server, `site` assembles pages, `forms`
has the pages with actions, `app` builds the application with the JSON API for programs, and `service` serves it.
"""
