#include <map>
#include <string>
#include <unistd.h>

struct Session { std::string user, token; };
static std::map<int, Session *> sessions;

static std::string render_page(int n) { return std::string(2000 + n % 500, 'x'); }

static void open_session(int n) {
    sessions[n] = new Session{"user " + std::to_string(n), std::string(200, 't')};
}

static void close_session(int n) {
    sessions.erase(n);  // and the Session?
}

static void handle_request(int n) {
    std::string page = render_page(n);
    open_session(n);
    if (n >= 1000)
        close_session(n - 1000);
}

int main() {
    for (int n = 0;; n++) {
        handle_request(n);
        usleep(100);
    }
}
