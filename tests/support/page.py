"""A page as a browser would see it."""

import html.parser


class Page(html.parser.HTMLParser):
    """What a browser would see: texts, addresses, tables as lists of rows of cells, pictures."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.texts, self.addresses, self.tables, self.pictures, self.headings = [], [], [], [], []
        self._open = []
        self.feed(text)
        assert not self._open, "a tag is never closed"

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.addresses += [attributes[name] for name in ("src", "href") if name in attributes]
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag == "img":
            self.pictures.append(attributes["src"])
            assert attributes["alt"]
        if tag not in ("img", "meta", "link", "br"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data
        if self._open and self._open[-1] == "h2":
            self.headings.append(data)
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(self.texts)
