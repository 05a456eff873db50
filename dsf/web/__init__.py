"""The page: people look at scores, find out why there are none, and act.

In reading order: `states` are the words for a pair, `reading` asks `dsf.fleet` for what the pages show, `search` reads
the language of the search box and `finding` answers, `dividing` divides the fleet, `views` are the pages, `drawing`
makes their pictures, `rendering` turns a view into HTML and its blocks, `live` sends the blocks that changed. `guard`
stands before all of it: host names, proxies, headers. `access` knows who may look and act, `sessions` remembers who
logged in, `acting` does what people ask for. `site` makes whole pages, `forms` are those on which people act, `jsonapi`
answers programs, `app` puts it together, and `main` runs it.
"""
